"""A caller's side: what it needs to be let in, what it never sends, and files that change under it."""

from __future__ import annotations

import os
import queue
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

import patience
from elastane.collective.rendezvous import RendezvousStore
from elastane.runtime.session import MasterSession
from elastane_agent.supervisor.master_process import EmbeddedMaster
from elastane_common.client import MasterClient
from elastane_common.client_errors import RequestRefusedError
from elastane_common.credentials import on_loopback, open_channel, worker_environment
from elastane_common.errors import ElastaneError, MasterUnreachableError, RefusedError
from elastane_proto.v1 import job_pb2, ring_pb2
from integration.security_support import Certificates, entry, token_of

VARIABLES = ("TLS_CA", "TLS_CERT", "TLS_KEY", "TLS_SERVER_NAME", "TOKEN", "TOKEN_FILE", "INSECURE")


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(f"ELASTANE_{name}", raising=False)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    """A master with mutual TLS whose certificate has another name, and tokens; job "mine"."""
    folder = tmp_path_factory.mktemp("credentials")
    certificates = Certificates(folder / "tls", "master.example")
    tokens = folder / "tokens.toml"
    tokens.write_text(
        entry("first", ["operator", "worker"], ["mine"])
        + entry("second", ["operator", "worker"], ["mine"])
        + entry("stranger", ["operator", "worker"], ["yours"])
    )
    files = {
        "token-file": tokens,
        "tls-cert": certificates.cert,
        "tls-key": certificates.key,
        "tls-client-ca": certificates.ca,
    }
    master = EmbeddedMaster(
        folder / "state",
        arguments=[part for name, path in files.items() for part in (f"--{name}", str(path))],
    )
    address = master.start()
    try:
        yield SimpleNamespace(address=address, certificates=certificates, folder=folder, master=master)
    finally:
        master.stop()


@pytest.fixture
def right(served: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The environment of a caller who is let in; gives the token's file."""
    path = tmp_path / "token"
    path.write_text(token_of("first") + "\n")
    for name, value in served.certificates.caller_environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("ELASTANE_TLS_SERVER_NAME", "master.example")
    monkeypatch.setenv("ELASTANE_TOKEN_FILE", str(path))
    with MasterClient(served.address, timeout_seconds=60) as client:
        client.create_job("mine", job_pb2.JobSettings(ests=1))
    return path


def jobs(address: str, timeout_seconds: float = 60.0) -> list[str]:
    with MasterClient(address, timeout_seconds=timeout_seconds) as client:
        return [job.name for job in client.list_jobs()]


def session_end(address: str, job: str = "mine") -> ElastaneError | ring_pb2.AttendResponse:
    """What a worker's session comes to: the error that ends it, or the master's first message."""
    outcome: queue.SimpleQueue[ElastaneError | ring_pb2.AttendResponse] = queue.SimpleQueue()
    hello = ring_pb2.Hello(job=job, worker_id="w0", role=ring_pb2.WORKER_ROLE_TASKS)
    session = MasterSession(
        address,
        hello=lambda: hello,
        heartbeat=lambda: ring_pb2.AttendRequest(heartbeat=ring_pb2.Heartbeat()),
        handler=outcome.put,
        failed=outcome.put,
        timeout_seconds=1.0,
    )
    session.start()
    try:
        return outcome.get(timeout=120)
    finally:
        session.close(ring_pb2.Bye(reason=ring_pb2.BYE_REASON_FINISHED))


@pytest.mark.usefixtures("right")
def test_who_has_all_of_it_is_let_in(served: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    assert jobs(served.address) == ["mine"]
    assert isinstance(session_end(served.address), ring_pb2.AttendResponse)
    monkeypatch.delenv("ELASTANE_TOKEN_FILE")
    monkeypatch.setenv("ELASTANE_TOKEN", token_of("first"))
    assert jobs(served.address) == ["mine"]


@pytest.mark.usefixtures("right")
@pytest.mark.parametrize("missing", ["TLS_CA TLS_CERT TLS_KEY", "TLS_CERT TLS_KEY", "TLS_SERVER_NAME"])
def test_without_the_certificates_there_is_no_master_and_the_hint_says_why(
    served: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    for name in missing.split():
        monkeypatch.delenv(f"ELASTANE_{name}")
    with pytest.raises(MasterUnreachableError, match="ELASTANE_TLS_CA"):
        jobs(served.address, 0.5)
    ended = session_end(served.address)
    assert isinstance(ended, MasterUnreachableError)
    assert "ELASTANE_TLS_CA" in ended.hint


def test_a_worker_without_a_token_or_with_another_jobs_is_refused_for_good(
    served: SimpleNamespace, right: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right.write_text(token_of("stranger"))
    ended = session_end(served.address)
    assert isinstance(ended, RefusedError)
    assert ended.exit_code == 82
    assert "not for job 'mine'" in str(ended)
    with pytest.raises(RequestRefusedError) as refused, MasterClient(served.address) as client:
        client.drain_worker("mine", "w0")
    assert refused.value.reason == "permission_denied"
    monkeypatch.delenv("ELASTANE_TOKEN_FILE")
    ended = session_end(served.address)
    assert isinstance(ended, RefusedError)
    assert "ELASTANE_TOKEN_FILE" in ended.hint
    with pytest.raises(RequestRefusedError) as refused:
        jobs(served.address)
    assert refused.value.reason == "unauthenticated"


def test_a_clients_open_connection_takes_up_a_new_token(served: SimpleNamespace, right: Path) -> None:
    with MasterClient(served.address, timeout_seconds=60) as client:
        client.list_jobs()
        channels = dict(client._channels)
        right.write_text("nobodys-token-0123456789")
        with pytest.raises(RequestRefusedError):
            client.list_jobs()
        right.write_text(token_of("second"))
        client.list_jobs()
        assert channels and client._channels == channels


def test_a_client_takes_up_a_renewed_certificate(
    served: SimpleNamespace, right: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificates: Certificates = served.certificates
    foreign = Certificates(tmp_path / "foreign")
    cert, key = tmp_path / "mine.pem", tmp_path / "mine.key"
    monkeypatch.setenv("ELASTANE_TLS_CERT", str(cert))
    monkeypatch.setenv("ELASTANE_TLS_KEY", str(key))
    cert.write_bytes(foreign.client_cert.read_bytes())
    key.write_bytes(foreign.client_key.read_bytes())
    with MasterClient(served.address, timeout_seconds=0.5) as client:
        with pytest.raises(MasterUnreachableError):
            client.list_jobs()
        certificates.issue(cert, key, "caller")
        os.utime(cert, ns=(0, 0))
        client._timeout_seconds = 60.0
        assert [job.name for job in client.list_jobs()] == ["mine"]


def test_a_master_of_ones_own_is_reached_with_another_ones_certificates_in_the_shell(
    right: Path, tmp_path: Path
) -> None:
    """`elastane run` beside a protected cluster: its embedded master serves loopback without TLS."""
    assert "ELASTANE_TLS_CA" in os.environ
    master = EmbeddedMaster(tmp_path / "state")
    try:
        assert jobs(master.start(), 30.0) == []
    finally:
        master.stop()


# ---------------------------------------------------------------- what is refused here already


@pytest.mark.parametrize(
    "address", ["10.0.0.5:50051", "master.example:50051", "[2001:db8::1]:1", "localhost.evil:1"]
)
def test_a_token_does_not_leave_this_machine_unencrypted(
    monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    assert not on_loopback(address)
    monkeypatch.setenv("ELASTANE_TOKEN", token_of("first"))
    with pytest.raises(RefusedError, match="unencrypted") as refused:
        open_channel(address)
    assert token_of("first") not in str(refused.value)
    monkeypatch.setenv("ELASTANE_INSECURE", "1")
    open_channel(address).close()


@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.9.9.9:1", "localhost:1", "[::1]:1", "unix:/run/x"])
def test_on_loopback_it_may(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    assert on_loopback(address)
    monkeypatch.setenv("ELASTANE_TOKEN", token_of("first"))
    open_channel(address).close()


@pytest.mark.parametrize(
    ("environment", "why"),
    [
        ({"TOKEN": "x" * 20, "TOKEN_FILE": "/x"}, "both set"),
        ({"TOKEN_FILE": "/missing/token"}, "cannot be read"),
        ({"TOKEN_FILE": "/dev/null"}, "holds no token"),
        ({"TLS_CERT": "/x"}, "belong together"),
        ({"TLS_CERT": "/x", "TLS_KEY": "/x"}, "not ELASTANE_TLS_CA"),
        ({"TLS_CA": "/missing/ca.pem"}, "cannot be read"),
        ({"INSECURE": "perhaps"}, "ELASTANE_INSECURE"),
    ],
)
def test_credentials_that_cannot_be_used_are_told_before_anything_is_sent(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], why: str
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(f"ELASTANE_{name}", value)
    with pytest.raises(RefusedError, match=why):
        open_channel("127.0.0.1:1")


def test_workers_get_their_own_token_and_not_the_agents() -> None:
    agents = {"ELASTANE_TOKEN_FILE": "ops", "ELASTANE_TLS_CA": "ca", "PATH": "p"}
    assert worker_environment(agents) == agents
    masters = {"ELASTANE_STORE": "redis://:password@x", "ELASTANE_MASTER_STORE_PASSWORD_FILE": "x"}
    assert worker_environment({**agents, **masters}) == agents
    own = worker_environment({**agents, "ELASTANE_WORKER_TOKEN_FILE": "trainers"})
    assert own == {"ELASTANE_TOKEN_FILE": "trainers", "ELASTANE_TLS_CA": "ca", "PATH": "p"}
    own = worker_environment({**agents, "ELASTANE_WORKER_TOKEN": "secret"})
    assert own == {"ELASTANE_TOKEN": "secret", "ELASTANE_TLS_CA": "ca", "PATH": "p"}


# ---------------------------------------------------------------- the command line


def elastane(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return patience.run(
        [sys.executable, "-m", "elastane_cli", *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_commands_take_credentials_as_options_and_say_what_is_missing(
    served: SimpleNamespace, right: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(f"ELASTANE_{name}", raising=False)
    tls = served.certificates
    connection = [
        "--tls-ca",
        str(tls.ca),
        "--tls-cert",
        str(tls.client_cert),
        "--tls-key",
        str(tls.client_key),
    ]
    connection += ["--tls-server-name", "master.example"]
    look = ["status", "--master", served.address]
    done = elastane(*connection, "--token-file", str(right), *look)
    assert done.returncode == 0, done.stderr
    assert "mine" in done.stdout
    done = elastane(*connection, *look)
    assert done.returncode == 3
    assert "ELASTANE_TOKEN_FILE" in done.stderr


def test_token_makes_a_file_for_the_owner_and_an_entry_without_the_secret(tmp_path: Path) -> None:
    out = tmp_path / "ci.token"
    done = elastane("token", 'c"i', "--role", "reader", "--job", "ci-*", "--out", str(out))
    assert done.returncode == 0, done.stderr
    secret = out.read_text().strip()
    assert out.stat().st_mode & 0o777 == 0o600
    assert len(secret) == 43
    assert secret not in done.stdout + done.stderr
    from elastane_master.security.tokens import TokenTable, digest_of

    owner = TokenTable.parse(done.stdout).find(digest_of(secret))
    assert owner is not None
    assert (owner.name, owner.roles, owner.jobs) == ('c"i', {"reader"}, ("ci-*",))
    again = elastane("token", "ci", "--role", "reader", "--out", str(out))
    assert again.returncode == 1
    assert out.read_text().strip() == secret
    assert elastane("token", "ci", "--role", "king", "--out", str(tmp_path / "x")).returncode == 2
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--listen", "0.0.0.0:0"], "--insecure"),
        (["--tls-cert", "x.pem"], "--tls-cert and --tls-key belong together"),
        (["--token-file", "/missing/tokens.toml"], "/missing/tokens.toml cannot be used"),
    ],
)
def test_a_master_that_would_be_open_or_is_half_protected_does_not_start(
    tmp_path: Path, arguments: list[str], said: str
) -> None:
    done = elastane("master", "--state-dir", str(tmp_path / "state"), *arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "state").exists()


# ---------------------------------------------------------------- between workers


def test_the_rendezvous_store_listens_at_its_own_address_only() -> None:
    store = RendezvousStore("127.0.0.1")
    port = int(store.address.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), 10):
        pass
    # Another address of this machine; torch's own socket would take it, being bound to all of them.
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", port), 10)
    store.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), 10)


@pytest.mark.parametrize("host", ["192.0.2.77", "no.such.host.invalid"])
def test_an_address_of_another_machine_is_told(host: str) -> None:
    with pytest.raises(RefusedError, match="cannot listen") as refused:
        RendezvousStore(host)
    assert "ELASTANE_STORE_HOST" in refused.value.hint

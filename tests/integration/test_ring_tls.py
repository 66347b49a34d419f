"""Connections between workers are encrypted where that to the master is: who agrees, bits, breaks, listeners.

The tests of the connections themselves: tests/unit/collective/test_socket_group.py and test_socket_mesh.py.
"""

from __future__ import annotations

import signal
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import structlog
import torch

from compared_runs import compare_runs
from elastane.collective import cpu_group
from elastane.collective.rendezvous import MemberStore, RendezvousStore
from elastane.collective.transport import RingTransport
from elastane_agent.supervisor.master_process import EmbeddedMaster
from elastane_cli.rehearse.cluster import LocalCluster
from elastane_cli.rehearse.stock_run import run_stock_ddp
from elastane_common.process_tls import Offer
from elastane_proto.v1 import job_pb2
from integration.ring_threads import WAIT_SECONDS, canonical_allreduce, in_threads
from integration.security_support import Certificates
from slow import slow

SCRIPTS = Path(__file__).parent / "scripts"
ARGUMENTS = [str(SCRIPTS / "train_matrix.py"), "--optimizer", "adamw", "--epochs", "3", "--seed", "3"]
ARGUMENTS += ["--size", "192", "--batch-size", "4", "--width", "200"]
ESTS, SIZE = 4, 192
PER_EPOCH = SIZE // 4 // ESTS
#: Bytes of a message that are looked for in what was heard.
PIECE = 16


@pytest.fixture
def store() -> Iterator[RendezvousStore]:
    store = RendezvousStore("127.0.0.1")
    yield store
    store.close()


@pytest.fixture(autouse=True)
def nothing_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_group, "_reported", set())


def ring(
    store: RendezvousStore,
    offers: list[Offer],
    messages: cpu_group.Messages = "sockets",
    prefix: str = "tls",
) -> list[RingTransport]:
    def form(rank: int) -> RingTransport:
        return RingTransport.form(
            store_address=store.address,
            prefix=prefix,
            rank=rank,
            size=len(offers),
            cancel=threading.Event(),
            timeout_seconds=WAIT_SECONDS,
            shared_memory=False,
            messages=messages,
            tls=offers[rank],
        )

    return in_threads(len(offers), form)


def encrypted(members: list[RingTransport]) -> set[bool]:
    """Which of their connections are encrypted: {True} all of them, {False} none."""
    return {
        isinstance(link.connection, ssl.SSLSocket)
        for member in members
        for link in member._group._links.values()
    }


def sums(members: list[RingTransport], vectors: list[torch.Tensor]) -> list[torch.Tensor]:
    ranges = [(rank, rank + 1) for rank in range(len(members))]
    outs = [torch.empty_like(vector) for vector in vectors]
    in_threads(
        len(members),
        lambda rank: canonical_allreduce([vectors[rank]], outs[rank], ranges, members[rank], 1),
    )
    return outs


def close(members: list[RingTransport]) -> None:
    for member in members:
        member.close()


def test_a_ring_that_wants_it_is_encrypted_and_its_sums_have_the_same_bits(store: RendezvousStore) -> None:
    plain = ring(store, ["possible"] * 3, prefix="plain")
    assert encrypted(plain) == {False}
    with structlog.testing.capture_logs() as logs:
        secure = ring(store, ["possible", "wanted", "possible"])
    assert encrypted(secure) == {True}
    assert not logs
    for elements in (3, 1_000, 400_000, 1_500_000):  # sent by all to all, in parts, and around the ring
        vectors = [torch.randn(elements) for _ in range(3)]
        expected, found = sums(plain, vectors), sums(secure, vectors)
        assert all(torch.equal(one, expected[0]) for one in (*expected, *found))
    close([*plain, *secure])


@pytest.mark.parametrize("why", ["older release", "turned off", "gloo"])
def test_a_member_that_cannot_encrypt_makes_the_ring_plain_and_those_who_want_it_say_so_once(
    store: RendezvousStore, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    announce = MemberStore.set

    def as_before(self: MemberStore, key: str, value: str | bytes) -> None:
        if key != "tls/1":
            announce(self, key, value)

    if why == "older release":
        monkeypatch.setattr(MemberStore, "set", as_before)
    # One of an older release announces nothing, and opens plain connections.
    offers: list[Offer] = ["wanted", "wanted" if why == "gloo" else "off", "possible"]
    with structlog.testing.capture_logs() as logs:
        for number in range(2):
            members = ring(store, offers, "gloo" if why == "gloo" else "sockets", f"{number}")
            assert why == "gloo" or encrypted(members) == {False}
            vectors = [torch.randn(1_000) for _ in range(3)]
            outs = sums(members, vectors)
            assert all(torch.equal(out, outs[0]) for out in outs)
            close(members)
    assert len(logs) == 1, logs
    assert logs[0]["log_level"] == "warning"
    assert "connections between workers are not encrypted" in logs[0]["event"]
    assert why in logs[0]["event"]


# ---------------------------------------------------------------- training


@pytest.fixture
def tapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., LocalCluster]]:
    """Builds a cluster whose master speaks TLS and whose workers' connections pass a listener."""
    certificates = Certificates(tmp_path / "certificates")
    for name, value in certificates.caller_environment().items():
        monkeypatch.setenv(name, value)
    clusters: list[LocalCluster] = []
    options = {name.replace("_", "-"): path for name, path in certificates.master_options().items()}

    def make(workers: int) -> LocalCluster:
        (tmp_path / "tap").mkdir()
        settings = job_pb2.JobSettings(ests=ESTS, workers_min=workers, workers_max=ESTS, audit_samples=True)
        settings.join_window.FromMilliseconds(20)
        cluster = LocalCluster(
            tmp_path / "elastic",
            settings,
            [str(SCRIPTS / "tapped_training.py"), str(tmp_path / "tap"), *ARGUMENTS],
            environment={"ELASTANE_SHARED_MEMORY": "0", "BUSY_SECONDS": "0.02"},
        )
        clusters.append(cluster)
        cluster.master = EmbeddedMaster(
            cluster.folder / "state",
            arguments=[part for name, path in options.items() for part in (f"--{name}", str(path))],
        )
        cluster.start()
        return cluster

    yield make
    for cluster in clusters:
        cluster.close()


def heard_and_said(folder: Path) -> tuple[bytes, list[bytes]]:
    """All that was heard, and pieces of what the workers sent, without those that may be there by chance."""
    heard = b"".join(path.read_bytes() for path in sorted(folder.glob("*.heard")))
    said = b"".join(path.read_bytes() for path in sorted(folder.glob("*.said")))
    stride = max(PIECE, len(said) // 2000 // 4 * 4)
    pieces = [said[at : at + PIECE] for at in range(0, len(said) - PIECE, stride)]
    return heard, [piece for piece in pieces if len(set(piece)) > 9]


@slow
def test_training_with_tls_is_encrypted_survives_a_kill_and_has_the_bits_of_stock_ddp(
    tapped: Callable[..., LocalCluster], tmp_path: Path
) -> None:
    cluster = tapped(3)
    for _ in range(3):
        cluster.add_worker()
    cluster.wait_for_step(6)
    cluster.workers["w1"].signal(signal.SIGKILL)
    cluster.add_worker()  # the ring waits for it; it gets weights and optimizer state from the others
    cluster.wait_for_end()
    assert cluster.get_job().phase == job_pb2.JOB_PHASE_SUCCEEDED, cluster.last_lines()
    received = [
        event.ring_formed for event in cluster.client.events(cluster.job) if event.kind == "ring_formed"
    ]
    assert len(received) == 2
    history = list(cluster.client.audit_log(cluster.job))
    stock = run_stock_ddp(tmp_path / "stock", ARGUMENTS, processes=ESTS)
    comparison = compare_runs(
        cluster.reports, stock, history, ests=ESTS, dataset_size=SIZE, steps_per_epoch=PER_EPOCH
    )
    assert comparison.audit.ok, comparison.audit.violations
    assert [row.name for row in comparison.rows if not row.equal] == []
    heard, pieces = heard_and_said(tmp_path / "tap")
    assert len(pieces) > 100
    assert len(heard) > 1_000_000
    assert [piece for piece in pieces if piece in heard] == []
    assert "not encrypted" not in "".join(path.read_text() for path in cluster.folder.glob("w*.log"))


@slow
def test_without_it_the_listener_reads_the_gradients(
    tapped: Callable[..., LocalCluster], tmp_path: Path
) -> None:
    """What the test above looks for can be found; and so it is with a worker of an older release."""
    cluster = tapped(2)
    cluster.add_worker()
    cluster.add_worker(environment={"OLD_RELEASE": "1", "ELASTANE_RING_TLS": "0"})
    cluster.wait_for_success()
    heard, pieces = heard_and_said(tmp_path / "tap")
    assert len(pieces) > 100
    assert all(piece in heard for piece in pieces)
    said = (cluster.folder / "w0.log").read_text()
    assert said.count("the connections between workers are not encrypted") == 1
    assert "a worker of an older release is in the ring" in said

"""How a master is reached: from a job's secrets, else with the operator's own credentials."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from elastane_operator.edge.access import master_access
from elastane_operator.edge.kube import KubeError
from elastane_operator.edge.masters import IDLE_SECONDS_MAX, Access, MasterAwayError, Masters
from elastane_operator.manifests.master import MasterDefaults
from unit.deploy.elastic_jobs import identity, spec_of


class Secrets:
    """An API server that has secrets alone."""

    def __init__(self, **secrets: dict[str, str]) -> None:
        self._secrets = secrets

    async def get(self, kind: str, namespace: str, name: str) -> dict[str, Any]:
        assert (kind, namespace) == ("Secret", "ml")
        if name not in self._secrets:
            raise KubeError(404, "NotFound", f'secrets "{name}" not found')
        return {
            "data": {
                key: base64.b64encode(value.encode()).decode() for key, value in self._secrets[name].items()
            }
        }


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TOKEN", "TOKEN_FILE", "TLS_CA", "TLS_CERT", "TLS_KEY", "TLS_SERVER_NAME", "INSECURE"):
        monkeypatch.delenv(f"ELASTANE_{name}", raising=False)


OWN = frozenset({"m:1", "m:2"})


async def access(
    secrets: Secrets, trusted: frozenset[str] = OWN, job_name: str = "", **master: Any
) -> Access:
    spec = spec_of(master=master, **({"jobName": job_name} if job_name else {}))
    return await master_access(secrets, identity(), spec, MasterDefaults(), trusted)  # type: ignore[arg-type]


async def test_secrets_of_the_job_go_before_the_operators_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ca.pem").write_text("own ca")
    monkeypatch.setenv("ELASTANE_TOKEN", "own")
    monkeypatch.setenv("ELASTANE_TLS_CA", str(tmp_path / "ca.pem"))
    plain = await access(Secrets(), address="m:1")
    assert (plain.token, plain.ca, plain.plain_token) == ("own", b"own ca", False)
    secrets = Secrets(
        tokens={"operator": "theirs\n", "worker": "no"},
        tls={"ca.crt": "their ca", "tls.crt": "cert", "tls.key": "key"},
    )
    master: dict[str, Any] = {
        "address": "m:1",
        "tokenSecret": {"name": "tokens"},
        "tlsSecret": {"name": "tls"},
    }
    given = await access(secrets, **master)
    assert (given.token, given.ca, given.cert) == ("theirs", b"their ca", b"")
    mutual = await access(secrets, **{**master, "tlsSecret": {"name": "tls", "clientCertificate": True}})
    assert (mutual.cert, mutual.key) == (b"cert", b"key")


async def test_masters_that_the_operators_owner_did_not_name_get_none_of_its_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ca", "cert", "key"):
        (tmp_path / name).write_text(f"own {name}")
        monkeypatch.setenv(f"ELASTANE_TLS_{name.upper()}", str(tmp_path / name))
    monkeypatch.setenv("ELASTANE_TOKEN", "own")
    theirs = Secrets(tls={"ca.crt": "their ca"}, tokens={"operator": "theirs"})
    strangers: list[dict[str, Any]] = [
        {"address": "evil:1"},
        {"address": "m:1,evil:1"},
        {"address": "evil:1", "tlsSecret": {"name": "tls"}},
        {"address": "m:1", "tokenSecret": {"name": "tokens"}},
        {"perJob": {}},
    ]
    for master in strangers:
        given = await access(theirs, **master)
        assert "own" not in given.token and (given.cert, given.key) == (b"", b""), master
    assert (await access(theirs, trusted=frozenset(), address="m:1")).token == ""
    named = await access(theirs, address="m:1,m:2")
    assert (named.token, named.cert, named.key) == ("own", b"own cert", b"own key")


async def test_the_operators_own_word_is_not_for_other_namespaces_jobs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ELASTANE_TOKEN", "own")
    assert (await access(Secrets(), job_name="ml.old", address="m:1")).token == "own"
    with pytest.raises(MasterAwayError, match=r"must begin with 'ml\.'"):
        await access(Secrets(), job_name="mlops.theirs", address="m:1")
    secrets = Secrets(tokens={"operator": "theirs"})
    named = await access(secrets, job_name="any", address="m:1", tokenSecret={"name": "tokens"})
    assert named.token == "theirs"


async def test_a_master_of_the_jobs_own_gets_none_of_the_operators_secrets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ELASTANE_TOKEN", "own")
    own = await access(Secrets(), perJob={})
    assert (own.token, own.ca, own.address) == ("", b"", "digits-master.ml.svc.cluster.local:50051")


@pytest.mark.parametrize(
    ("secrets", "words"),
    [(Secrets(), "cannot be read"), (Secrets(tokens={"worker": "w"}), "has no key 'operator'")],
)
async def test_what_is_missing_is_named(secrets: Secrets, words: str) -> None:
    with pytest.raises(MasterAwayError, match=words):
        await access(secrets, address="m:1", tokenSecret={"name": "tokens"})


async def test_a_token_does_not_leave_the_machine_in_the_clear() -> None:
    masters = Masters(timeout_seconds=0.2)
    try:
        view = await masters.view(Access("10.255.255.1:1", token="secret"), "job")
        assert not view.reachable and "unencrypted" in view.error
        here = await masters.view(Access("127.0.0.1:1", token="secret"), "job")
        assert not here.reachable and "unencrypted" not in here.error
    finally:
        await masters.close()


async def test_channels_to_masters_that_are_gone_are_closed() -> None:
    clock = 0.0
    masters = Masters(timeout_seconds=0.2, monotonic=lambda: clock)
    try:
        for job in range(3):
            await masters.view(Access(f"127.0.0.1:{job + 1}"), "job")
        assert len(masters._channels) == 3
        clock = IDLE_SECONDS_MAX
        await masters.view(Access("127.0.0.1:1"), "job")
        clock += 1
        await masters.view(Access("127.0.0.1:9"), "job")
        assert {address for address, _ in masters._channels} == {"127.0.0.1:1", "127.0.0.1:9"}
        assert masters._asked.keys() == masters._channels.keys()
    finally:
        await masters.close()

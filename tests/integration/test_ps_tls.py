"""Parameter servers at a master with TLS: their connections are encrypted, and the bits are the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from elastane_agent.supervisor.master_process import EmbeddedMaster
from elastane_common.client import MasterClient
from integration.ps_runs import PsRun, plain, ps_run
from integration.security_support import Certificates
from slow import slow

SCRIPT = ["--model", "deep", "--tasks", "12"]
HINT = "give workers and parameter servers the same setting of ELASTANE_RING_TLS"
IN_CLEAR = "connections to this parameter server are not encrypted"


@pytest.fixture
def begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], PsRun]]:
    """Begins a job at a master that speaks TLS only."""
    certificates = Certificates(tmp_path / "certificates")
    for name, value in certificates.caller_environment().items():
        monkeypatch.setenv(name, value)
    options = {name.replace("_", "-"): path for name, path in certificates.master_options().items()}
    with ExitStack() as stack:

        def make() -> PsRun:
            master = EmbeddedMaster(
                tmp_path / "state",
                arguments=[part for name, path in options.items() for part in (f"--{name}", str(path))],
            )
            master.start()
            stack.callback(master.stop)
            run = stack.enter_context(ps_run(master.address, tmp_path, SCRIPT))
            run.create(ps_replicas=1)
            return run

        yield make


@slow
def test_they_are_encrypted_outlive_a_death_and_have_the_bits_of_plain_mode(
    begin: Callable[[], PsRun], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = begin()
    for number in range(3):
        run.start_ps(f"ps-{number}")
    run.start_worker("w0")
    run.done_reaches(4)
    run.kill_ps("ps-1")
    assert run.wait("w0") == 0
    assert run.result("w0")["digest"] == plain(tmp_path, SCRIPT)["digest"]
    assert IN_CLEAR not in capfd.readouterr().out


@slow
def test_a_worker_in_clear_is_warned_of_and_one_that_encrypts_does_not_fall_back(
    begin: Callable[[], PsRun], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    run = begin()
    run.start_ps("ps-0")
    monkeypatch.setenv("ELASTANE_RING_TLS", "0")
    run.start_ps("ps-1")
    monkeypatch.delenv("ELASTANE_RING_TLS")
    run.start_worker("w0")
    assert run.wait("w0") != 0
    said = capfd.readouterr().out
    assert HINT in said
    with MasterClient(run.address) as client:
        assert client.get_progress("job")[0].done == 0
    run.kill_ps("ps-1")
    monkeypatch.setenv("ELASTANE_RING_TLS", "0")
    run.start_worker("w1")
    assert run.wait("w1") == 0
    said += capfd.readouterr().out
    assert said.count(IN_CLEAR) == 1, said  # ps-0's, of all that call it in clear

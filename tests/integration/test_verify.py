"""`elastane verify`: equal scripts are equal under churn; every kind of flaw is found, placed and named."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import psutil
import pytest

import patience
from elastane_cli.rehearse.watcher import Watcher
from elastane_cli.verify.run import RunFailed, Verdict, VerifyResult, run_verify
from integration.forked_cli import ForkedCommands
from integration.forkserver import ForkServers
from slow import further, slow

SCRIPTS = Path(__file__).parent / "scripts"
FLAWED = str(SCRIPTS / "flawed.py")
MATRIX = str(SCRIPTS / "train_matrix.py")


@pytest.fixture
def prove(servers: ForkServers, tmp_path: Path):
    def run(*script: str, **options: object) -> VerifyResult:
        settings = {"ests": 2, "seed": 5, "launch": servers.launch, **options}
        return run_verify(tmp_path / "verify", script, **settings)

    return run


def flawed(flaw: str) -> tuple[str, ...]:
    return FLAWED, "--flaw", flaw


class Heard(Watcher):
    def __init__(self) -> None:
        self.stages: list[str] = []
        self.steps: list[int] = []

    def stage(self, text: str, steps: int | None = None) -> None:
        self.stages.append(text)

    def step(self, step: int) -> None:
        self.steps.append(step)


def test_equal_under_three_paths_with_kills(prove, tmp_path: Path) -> None:
    heard = Heard()
    script = (MATRIX, "--size", "60", "--data-workers", "1", "--seed", "3")
    result = prove(
        *script, ests=3, runs=3, kills=2, paths=[(3, 1, 2), (1, 3), (2, 3, 1)], seed=1, watcher=heard
    )
    assert result.equal and result.exit_code == 0, result.as_json()
    assert [run.plan.path for run in result.runs] == [(3, 1, 2), (1, 3), (2, 3, 1)]
    assert result.steps == 12 and result.values == 36
    for number, run in enumerate(result.runs, 1):
        assert len(run.plan.deaths) == 2
        assert all(row.equal for row in run.comparison.rows) and not run.comparison.violations
        names = {row.name for row in run.comparison.rows}
        assert names >= {"steps", "weights", "optimizer", "buffers", "logged values"}
        logs = {path.stem for path in (tmp_path / "verify" / f"run-{number}").glob("w*.log")}
        assert logs >= {*run.plan.start, *run.plan.doomed}
    # A script that repeats itself needs one reference only, and no traces.
    assert len(heard.stages) == 4 and max(heard.steps) == 12
    assert not list((tmp_path / "verify").rglob("trace"))


@further  # unit/verify/test_verify_plan.py
def test_the_same_seed_makes_the_same_churn(prove) -> None:
    result = prove(FLAWED, steps=8, seed="again", kills=1)
    assert result.equal and result.steps == 8
    from elastane_cli.verify.plan import make_plan

    assert result.runs[0].plan == make_plan("again/0", ests=2, steps=8, kills=1)


@slow  # in a trace: unit/verify
def test_the_first_difference_of_a_pipeline_names_step_est_and_unit(prove) -> None:
    script = (str(SCRIPTS / "train_pipeline.py"), "--epochs", "1", "--evaluate", "none", "--flaw")
    result = prove(*script, stages=(1, 3))
    assert result.verdict is Verdict.DIFFERS
    assert result.where == "step 0, EST 1: the local gradient of 6.weight", result.as_json()


@further  # test_gallery finds one in a run; in a trace: unit/verify
def test_an_unregistered_generator_is_named(prove) -> None:
    result = prove(*flawed("generator"))
    assert result.verdict is Verdict.DIFFERS and result.exit_code == 1
    assert result.cause is not None and result.cause.kind == "unregistered generator"
    assert "flawed.py: noise" in result.cause.text
    assert result.cause.hint == 'register it before prepare: job.register("noise", noise)'
    assert result.difference is not None and result.difference.what == "value"
    document = json.loads(json.dumps(result.as_json()))
    assert document["where"].startswith(f"step {result.difference.step}, EST {result.difference.rank}")
    assert document["cause"]["kind"] == "unregistered generator"
    assert "weights" in document["runs"][0]["differing"]


def test_a_script_that_does_not_repeat_itself_is_told_apart(prove) -> None:
    result = prove(*flawed("unseeded"))
    assert result.verdict is Verdict.NOT_DETERMINISTIC and result.exit_code == 3
    assert result.cause is not None and result.cause.kind == "seeds" and not result.cause.ours
    assert result.difference is not None and result.difference.what == "initial weights"


@further  # the test above, and test_gallery's generator; in a trace: unit/verify
def test_an_unseeded_generator_is_named_and_told_apart(prove) -> None:
    result = prove(*flawed("unseeded generator"))
    assert result.verdict is Verdict.NOT_DETERMINISTIC
    assert result.cause is not None and result.cause.kind == "unregistered generator"
    assert "flawed.py: main().fresh" in result.cause.text and "has no seed" in result.cause.text


@slow  # in a trace: unit/verify
def test_a_wrong_sum_is_our_own_fault(prove) -> None:
    result = prove(*flawed("ours"))
    assert result.verdict is Verdict.DIFFERS
    assert result.cause is not None and result.cause.ours and result.cause.kind == "reduction"
    assert result.difference is not None
    assert (result.difference.step, result.difference.what) == (3, "weights")
    assert result.difference.name == "body.0.weight"


def test_state_kept_by_the_loop_body_is_found(prove) -> None:
    result = prove(*flawed("hidden"), trace=True)
    assert result.verdict is Verdict.DIFFERS
    # It is kept by a function, where the source does not show it.
    assert result.cause is not None and result.cause.kind == "hidden state"
    assert "shared its worker with EST" in result.cause.text


@pytest.mark.parametrize(
    ("flaw", "said"),
    [
        ("raises", "the disk with the weather is full"),
        pytest.param("one rank dies", "rank 1 has no data", marks=slow),
        pytest.param("raises elastically", "no such worker on this planet", marks=slow),
        ("dies at once", "no licence for elastic training"),
    ],
)
def test_a_run_that_fails_shows_its_last_lines(prove, flaw: str, said: str) -> None:
    with pytest.raises(RunFailed, match=said):
        prove(*flawed(flaw))


def test_runs_that_take_too_long_are_ended(prove, tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match=r"not finished after 6 s"):
        prove(*flawed("sleeps"), timeout_seconds=6.0)
    assert not left_over(tmp_path)


def left_over(folder: Path) -> list[psutil.Process]:
    """Processes of this test that still run: their working directory is in its folder."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid != os.getpid() and Path(process.cwd()).is_relative_to(folder):
                found.append(process)
    return found


# ---------------------------------------------------------------------- the command


def elastane(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "elastane_cli", "verify", *arguments]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return patience.run(
        command, env=environment, capture_output=True, text=True, timeout=280, check=False, **options
    )


@pytest.fixture
def forked_elastane(forked_commands: ForkedCommands):
    """The same, with the scripts forked."""
    return partial(forked_commands.run, "verify", timeout_seconds=280.0)


def test_the_command_says_equal(forked_elastane, tmp_path: Path) -> None:
    ran = forked_elastane("--ests", "2", "--seed", "4", "--json", "--keep", str(tmp_path / "kept"), FLAWED)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stderr.startswith("seed 4\n")
    document = json.loads(ran.stdout)
    assert document["verdict"] == "equal" and document["seed"] == "4" and document["ests"] == 2
    assert set(document["sha256"]) >= {"weights", "optimizer", "buffers"}
    assert document["runs"][0]["kills"] == 1 and document["runs"][0]["churn"][0].startswith("start: w0")
    assert (tmp_path / "kept" / "run-1" / "w0.log").exists()


@slow
def test_the_command_shows_the_difference(forked_elastane) -> None:
    ran = forked_elastane("--ests", "2", "--seed", "5", "--steps", "9", *flawed("generator"))
    assert ran.returncode == 1, ran.stderr
    lines = ran.stdout.splitlines()
    assert lines[0] == "seed 5"
    assert any("differs" in line for line in lines)
    assert any("likely cause: the generator flawed.py: noise" in line for line in lines)
    assert any(
        'what to do: register it before prepare: job.register("noise", noise)' in line for line in lines
    )
    assert lines[-1].startswith("again: elastane verify --ests 2 --seed 5") and "--steps 9" in lines[-1]


@further  # test_a_run_that_fails_shows_its_last_lines
def test_the_command_shows_a_failure(forked_elastane) -> None:
    ran = forked_elastane("--ests", "2", *flawed("raises"))
    assert ran.returncode == 11
    assert "the disk with the weather is full" in ran.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["train.py"], "Missing option"),
        (["--ests", "1", FLAWED], "--ests"),
        (["--ests", "2", "/nowhere/train.py"], "is not a file"),
        (["--ests", "2", "--paths", "3,1", FLAWED], "between 1 and 2"),
        (["--ests", "2", "--paths", "two", FLAWED], "is not a path"),
        (["--ests", "2", "--determinism", "d7", FLAWED], "not d0, d1 or d2"),
        (["--ests", "2", "--steps", "2", FLAWED], "--steps"),
        (["--ests", "2", "--keep", "/tmp", FLAWED], "exists already"),
    ],
)
def test_bad_usage_is_said_before_anything_runs(arguments: list[str], said: str) -> None:
    ran = elastane(*arguments)
    assert ran.returncode == 2
    assert said in " ".join(ran.stderr.replace("│", " ").split())
    assert "seed" not in ran.stdout


def test_churn_that_does_not_fit_is_bad_usage(forked_elastane) -> None:
    ran = forked_elastane("--ests", "2", "--steps", "3", "--kills", "5", FLAWED)
    assert ran.returncode == 2
    assert "do not fit into 3 steps" in ran.stderr


@slow
@pytest.mark.parametrize(
    ("number", "code", "mode"),
    [
        (signal.SIGTERM, 143, "ddp"),
        pytest.param(signal.SIGINT, 130, "elastic", marks=further),  # the same with the other signal
    ],
)
def test_a_signal_leaves_nothing_behind(tmp_path: Path, number: int, code: int, mode: str) -> None:
    """Sent while the script trains on the given side; it tells so through a pipe."""
    told = tmp_path / "told"
    os.mkfifo(told)
    (tmp_path / "tmp").mkdir()
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "TMPDIR": str(tmp_path / "tmp"),
        "FLAWED_TELLS": str(told),
    }
    command = [sys.executable, "-m", "elastane_cli", "verify", "--ests", "2", *flawed("slow")]
    pipe = os.open(told, os.O_RDWR)  # both ways: it never ends, and nobody waits to open it
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)

    def tell_the_end() -> None:
        process.wait()
        with contextlib.suppress(OSError):  # nobody reads any more
            end = os.open(told, os.O_WRONLY | os.O_NONBLOCK)
            os.write(end, b"ended\n")
            os.close(end)

    with os.fdopen(pipe) as lines:
        threading.Thread(target=tell_the_end, daemon=True).start()
        line = next(line for line in lines if line in (f"{mode}\n", "ended\n"))
        assert line != "ended\n", process.communicate(timeout=60)[1]
        children = psutil.Process(process.pid).children(recursive=True)
        assert any(FLAWED in child.cmdline() for child in children)
        process.send_signal(number)
        _, said = patience.communicate(process, 60)
    assert process.returncode == code, said
    assert "Traceback" not in said
    assert psutil.wait_procs(children, timeout=10)[1] == []
    assert not list((tmp_path / "tmp").glob("elastane-verify-*")), "the temporary folder is gone"

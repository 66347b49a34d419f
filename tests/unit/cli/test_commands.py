"""The commands against a fake master: text, JSON and exit codes."""

from __future__ import annotations

import importlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import grpc
import pytest
import typer
from typer.testing import CliRunner, Result

import patience
from elastane_cli.audit import EpochAudit
from elastane_cli.commands import events as events_command
from elastane_cli.commands.audit import fold_epochs
from elastane_cli.commands.catalogue import COMMANDS, load
from elastane_cli.commands.main import build_app, main
from elastane_cli.commands.run import default_job_name
from elastane_cli.commands.track import _end_with
from elastane_cli.demo.run import demo_script
from elastane_common.errors import MasterUnreachableError
from elastane_proto.v1 import job_pb2, metric_pb2, ring_pb2, shard_pb2
from tensorboard_files import shown
from unit.cli.fake_master import FakeMaster, serving

SOURCES = Path(__file__).parents[3]
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join(
        str(SOURCES / root) for root in ("common", "proto", "shard_service", "scheduler", "master", "worker")
    ),
}


@pytest.fixture
def master() -> Iterator[FakeMaster]:
    fake = FakeMaster()
    with serving(fake) as address:
        fake.address = address
        yield fake


def invoke(master: FakeMaster, *arguments: str) -> Result:
    environment = {"ELASTANE_MASTER": master.address}
    return CliRunner().invoke(build_app(), list(arguments), env=environment)


def document(result: Result) -> object:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_status_shows_phase_step_and_workers(master: FakeMaster) -> None:
    result = invoke(master, "status")
    assert result.exit_code == 0
    for text in (
        "train",
        "running: 2 workers",
        "12/30, epoch 2/3",
        "generation 3",
        "w0",
        "member",
        "0-1",
        "2-3",
        "joined",
    ):
        assert text in result.stdout


def test_status_as_json_has_plain_numbers_and_short_names(master: FakeMaster) -> None:
    job = document(invoke(master, "status", "train", "--json"))
    assert isinstance(job, dict)
    assert (job["phase"], job["step"], job["settings"]["seed"]) == ("running", 12, None)
    assert job["workers"][1]["ests"] == {"start": 2, "end": 4}


def test_jobs(master: FakeMaster) -> None:
    assert "train" in invoke(master, "jobs").stdout
    listed = document(invoke(master, "jobs", "--json"))
    assert isinstance(listed, list) and [job["name"] for job in listed] == ["train"]


def test_not_found_exits_with_3_and_a_hint(master: FakeMaster) -> None:
    result = invoke(master, "status", "other")
    assert result.exit_code == 3
    assert "no job 'other'" in result.stderr and "hint: this master has: train" in result.stderr
    # A caller that may not list jobs is told what the master itself says.
    master.fail_next = [
        lambda context: None,
        lambda context: context.abort(grpc.StatusCode.PERMISSION_DENIED, "no"),
    ]
    assert "hint: look with elastane jobs" in invoke(master, "status", "other").stderr
    result = invoke(master, "status", "other", "--json")
    error = json.loads(result.stderr)
    assert (error["reason"], error["exit_code"], error["facts"]) == ("not_found", 3, {"job": "other"})


def test_unreachable_exits_with_4_and_a_hint() -> None:
    result = CliRunner().invoke(build_app(), ["jobs", "--master", "127.0.0.1:1", "--timeout", "0.2"])
    assert result.exit_code == 4
    assert "127.0.0.1:1" in result.stderr and "--master" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["scale", "4:2"],
        ["scale", "x"],
        ["scale", "0:2"],
        ["scale", "a", "b", "c"],
        ["drain"],
        ["nothing"],
        ["run", "--ests", "0", "x.py"],
        ["run", "--ests", "2", "/nowhere/x.py"],
        ["run", "x.py"],
        ["status", "--timeout", "-1"],
        ["jobs", "--master", ","],
    ],
    ids=" ".join,
)
def test_bad_usage_exits_with_2(master: FakeMaster, arguments: list[str]) -> None:
    assert invoke(master, *arguments).exit_code == 2
    assert master.requests == []


@pytest.mark.parametrize("command", [["status"], ["run", "--ests", "1", __file__]])
def test_an_address_that_is_none_says_what_to_write(command: list[str]) -> None:
    result = CliRunner().invoke(build_app(), [command[0], "--master", "nonsense", *command[1:]])
    assert result.exit_code == 2
    assert "HOST:PORT" in result.output


def test_one_number_is_the_most_and_leaves_the_fewest(master: FakeMaster) -> None:
    assert invoke(master, "scale", "3").exit_code == 0
    request = master.requests[-1]
    assert (request.workers_min, request.workers_max) == (0, 3)


@pytest.mark.parametrize("arguments", [["scale", "2:3"], ["scale", "train", "2:3"]], ids=" ".join)
def test_scale(master: FakeMaster, arguments: list[str]) -> None:
    result = invoke(master, *arguments)
    assert result.exit_code == 0 and "scaled to 2:3 workers" in result.stdout
    assert master.jobs["train"].settings.workers_max == 3
    assert master.requests[-1].request_id


def test_drain_suspend_resume_cancel_checkpoint(master: FakeMaster) -> None:
    assert "w1 leaves" in invoke(master, "drain", "w1").stdout
    assert master.requests[-1].worker_id == "w1" and master.requests[-1].name == "train"
    assert "suspended: on request" in invoke(master, "suspend").stdout
    assert invoke(master, "resume").exit_code == 0
    assert invoke(master, "cancel", "train").exit_code == 0
    assert "saved at step 13: file:///saved" in invoke(master, "checkpoint").stdout


def test_delete_asks_and_takes_no_silence_for_an_answer(master: FakeMaster) -> None:
    silent = invoke(master, "delete", "train", "--force")  # nobody is there who could answer
    assert silent.exit_code == 2 and "--yes" in silent.output
    assert master.requests == []
    running = invoke(master, "delete", "train", "--yes")
    assert running.exit_code != 0 and "the job is running" in running.output and "train" in master.jobs
    assert "train: deleted" in invoke(master, "delete", "train", "--yes", "--force").stdout
    assert master.requests[-1].force and master.requests[-1].request_id
    assert "train" not in master.jobs


def test_delete_does_nothing_when_the_answer_is_no(
    master: FakeMaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elastane_cli.commands.operate._can_ask", lambda: True)
    arguments = ["delete", "--master", master.address, "train", "--force"]
    declined = CliRunner().invoke(build_app(), arguments, input="n\n")
    assert declined.exit_code == 1 and master.requests == []
    asked = CliRunner().invoke(build_app(), [*arguments, "--json"], input="y\n")
    assert asked.exit_code == 0 and '"deleted": "train"' in asked.stdout


def test_events(master: FakeMaster) -> None:
    lines = invoke(master, "events", "--since", "2").stdout.splitlines()
    assert len(lines) == 2
    assert "worker_lost" in lines[0] and "w2" in lines[0] and "reason 2" in lines[0]
    records = [json.loads(line) for line in invoke(master, "events", "--json").stdout.splitlines()]
    assert [record["sequence"] for record in records] == [1, 2, 3]
    assert records[0]["time"].startswith("2023-11-14T")


def test_events_are_filtered_and_checkpoints_folded(master: FakeMaster) -> None:
    def tell(number: int, kind: str, worker: str = "", **facts: str) -> None:
        event = ring_pb2.Event(sequence=number, kind=kind, worker_id=worker, reason=f"r{number}", facts=facts)
        event.time.FromSeconds(1_700_000_000 + number)
        master.events.append(event)

    for number in range(4, 44, 2):
        tell(number, "checkpoint_requested", at_step=str(number))
        tell(number + 1, "checkpoint_saved", at_step=str(number))
    tell(44, "ring_change", members="w1[0:2], w7[2:4]")
    tell(45, "checkpoint_failed")

    def shown(*options: str) -> list[str]:
        return [line.split()[0] for line in invoke(master, "events", *options).stdout.splitlines()]

    assert shown() == ["1", "2", "3", "43", "44", "45"]
    fold = invoke(master, "events").stdout.splitlines()[3]
    assert "checkpoint_saved x40" in fold and "20 checkpoints saved, of steps 4 to 42" in fold
    assert len(shown("--all")) == len(shown("--json")) == 45
    assert len(shown("--kind", "checkpoint_saved")) == 20, "who asks for them sees each"
    assert shown("--kind", "worker") == ["1", "2", "3"] and shown("-k", "work") == []
    assert shown("--kind", "worker_lost", "--kind", "ring_change") == ["2", "44"]
    assert shown("--worker", "w1") == ["1", "44"] and shown("--worker", "w7") == ["44"]
    assert shown("--since", "44") == shown("--since", "2023-11-14T22:14:04+00:00") == ["44", "45"]
    assert shown("--since", "1h") == [] and shown("--since", "9999d") == shown()
    refused = invoke(master, "events", "--since", "yesterday")
    assert refused.exit_code == 2 and "--since" in refused.output


def test_what_is_followed_goes_on_after_what_was_folded(master: FakeMaster) -> None:
    for number in range(4, 8):
        master.events.append(ring_pb2.Event(sequence=number, kind="checkpoint_saved", reason="r"))
    # The stream that follows has one new event, and then the master is gone.
    master.events_followed = [ring_pb2.Event(sequence=8, kind="checkpoint_saved", reason="new")]
    result = invoke(master, "events", "--follow")
    assert [line.split()[0] for line in result.stdout.splitlines()] == ["1", "2", "3", "7", "8"]
    asked = [request for request in master.requests if isinstance(request, ring_pb2.WatchEventsRequest)]
    assert [(request.since, request.follow) for request in asked[:2]] == [(0, False), (8, True)]


def followed_in_thread(master: FakeMaster, *options: str) -> tuple[list[Result], threading.Thread]:
    results: list[Result] = []
    command = "events", "train", "--follow", *options
    thread = threading.Thread(target=lambda: results.append(invoke(master, *command)), daemon=True)
    thread.start()
    return results, thread


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_following_ends_with_the_job_after_its_last_events(
    master: FakeMaster, options: tuple[str, ...]
) -> None:
    results, thread = followed_in_thread(master, *options)
    master.following.get(timeout=60)
    master.change("train", phase=job_pb2.JOB_PHASE_SUCCEEDED)  # its workers are still there
    master.events.append(ring_pb2.Event(sequence=4, kind="worker_left", reason="r"))
    del master.jobs["train"].workers[:]
    master.change("train")
    thread.join(60)
    [result] = results
    assert result.exit_code == 0, result.output
    assert len(result.stdout.splitlines()) == 4 and "worker_left" in result.stdout.splitlines()[-1]


def test_following_a_job_that_is_over_ends(master: FakeMaster) -> None:
    del master.jobs["train"].workers[:]
    master.change("train", phase=job_pb2.JOB_PHASE_CANCELLED)
    _, thread = followed_in_thread(master)
    thread.join(60)
    assert not thread.is_alive()


def test_following_a_job_that_never_leaves_its_workers_ends(
    master: FakeMaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.import_module("elastane_cli.commands.events"), "LEAVE_SECONDS", 0.1)
    master.change("train", phase=job_pb2.JOB_PHASE_SUCCEEDED)
    _, thread = followed_in_thread(master)
    thread.join(60)
    assert not thread.is_alive()


def test_following_a_job_that_is_deleted_ends_and_says_so(master: FakeMaster) -> None:
    results, thread = followed_in_thread(master, "--json")
    over = master.following.get(timeout=60)
    job = master.jobs.pop("train")
    master.jobs["other"] = job
    master.change("other")
    over.set()
    thread.join(60)
    [result] = results
    assert result.exit_code == 0 and "job train was deleted" in result.stderr
    never = invoke(master, "events", "never", "--follow", "--json")
    assert never.exit_code != 0 and "deleted" not in never.stderr


def test_progress_once_and_until_complete(master: FakeMaster) -> None:
    assert "todo 1  doing 1  done 2/4  re-queued 1" in invoke(master, "progress").stdout
    lines = invoke(master, "progress", "--watch").stdout.splitlines()
    assert len(lines) == 2 and lines[0].endswith("left 0:04") and lines[1].endswith("complete")
    records = [
        json.loads(line) for line in invoke(master, "progress", "--watch", "--json").stdout.splitlines()
    ]
    assert [record["datasets"][0]["done"] for record in records] == [2, 4]
    assert records[0]["datasets"][0]["eta"] == 4.0


def test_progress_ends_with_its_job(master: FakeMaster) -> None:
    master.progress = master.progress[:1]  # half done, and so it stays
    master.jobs["train"].phase = job_pb2.JOB_PHASE_CANCELLED
    result = invoke(master, "progress", "--watch")
    assert result.exit_code == 0 and result.stdout.splitlines()[-1].endswith("left 0:04")
    master.progress = [[]]
    assert invoke(master, "progress", "--watch").stdout == "no dataset yet\n"


def test_epochs_that_are_alike_are_one_row() -> None:
    alike = [EpochAudit("train", number, 10, 40, 40) for number in range(5)]
    short = EpochAudit("train", 5, 10, 40, 40, missing=1, violations=("a sample is missing",))
    running = EpochAudit("train", 7, 3, 12, 12, complete=False)
    rows = fold_epochs([*alike, short, EpochAudit("train", 6, 10, 40, 40), running])
    assert [(first.epoch, last) for first, last in rows] == [(0, 4), (5, 5), (6, 6), (7, 7)]
    assert len(fold_epochs([replace(alike[0], violations=("x",)), replace(alike[1], violations=("x",))])) == 2


def test_audit(master: FakeMaster) -> None:
    master.jobs["train"].settings.ests, master.jobs["train"].steps_per_epoch = 2, 2
    for step in range(2):
        for rank in range(2):
            start = 4 * step + 2 * rank
            entry = shard_pb2.AuditEntry(step=step, virtual_rank=rank, samples=[start, start + 1])
            entry.range.start, entry.range.end = start, start + 2
            master.history.append(entry)
    result = invoke(master, "audit")
    assert result.exit_code == 0 and "every sample of every epoch counts exactly once" in result.stdout
    assert document(invoke(master, "audit", "--json"))["ok"] is True
    result = invoke(master, "audit", "--samples", "20")
    assert result.exit_code == 1 and "12 samples (8, 9, 10" in result.stdout
    master.history[1].samples[0] = 0
    assert "violation: epoch 0" in invoke(master, "audit").stdout


@pytest.mark.parametrize(("option", "value"), [("--keep", "."), ("--json", "nowhere/result.json")])
def test_demo_refuses_bad_paths_before_it_starts(option: str, value: str) -> None:
    result = CliRunner().invoke(build_app(), ["demo", option, value])
    assert result.exit_code == 2
    assert value.split("/")[0] in result.output


def test_what_a_worker_says_steers_no_terminal(master: FakeMaster) -> None:
    said = "KeyError \x1b]0;mine\x1b\\ \x1b[2J"
    master.jobs["train"].reason = master.jobs["train"].workers[0].reason = master.events[0].reason = said
    for command in ("status", "jobs", "events"):
        told = invoke(master, command).stdout
        assert "KeyError" in told and "\x1b" not in told, command


def test_the_demo_is_found_in_the_clone_and_says_what_it_needs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert demo_script() == SOURCES / "examples" / "digits_cnn.py"
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = CliRunner().invoke(build_app(), ["demo"])
    assert result.exit_code == 3 and "pip install scikit-learn" in result.output


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_completes_commands_and_options(shell: str) -> None:
    def asked(typed: str) -> str:
        """What is offered at the end of the line, asked as the shell's own function asks."""
        words = {"COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split(" ")) - 1)}
        line = {"_TYPER_COMPLETE_ARGS": typed, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
        told = words | line | {"_ELASTANE_COMPLETE": f"complete_{shell}"}
        return CliRunner().invoke(build_app(), [], env=told, prog_name="elastane").output

    assert "scale" in asked("elastane sc") and "status" not in asked("elastane sc")
    assert "--checkpoint-steps" in asked("elastane run --checkpoint-s")


def test_without_a_command_the_commands_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 0 and "verify" in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0 and capsys.readouterr().out == f"elastane {version('elastane')}\n"


def test_every_command_has_help_with_an_example() -> None:
    app = build_app()
    names = [command.name for command in app.registered_commands if not command.hidden]
    assert len(names) >= 13
    for name in names:
        if name in ("master", "demo", "verify", "doctor"):
            continue
        result = CliRunner().invoke(app, [str(name), "--help"], env={"COLUMNS": "120"})
        assert result.exit_code == 0 and "Example" in result.stdout, name


def test_status_imports_neither_torch_nor_numpy(master: FakeMaster) -> None:
    code = (
        "import sys\n"
        "from elastane_cli.commands.main import main\n"
        "assert 'grpc' not in sys.modules, 'grpc at import'\n"
        "try:\n    main(['status'])\nexcept SystemExit as end:\n    assert end.code == 0, end.code\n"
        "assert 'grpc' in sys.modules\n"
        "heavy = {'torch', 'numpy'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    environment = {**ENVIRONMENT, "ELASTANE_MASTER": master.address}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True)


def test_the_help_of_a_command_is_the_same_with_options_before_it() -> None:
    name = "run"
    command = [sys.executable, "-m", "elastane_cli"]
    environment = {**ENVIRONMENT, "COLUMNS": "100"}
    for option in ("--help", "-h"):
        short, long = (
            subprocess.run(
                [*command, *before, name, option], env=environment, check=True, capture_output=True
            )
            for before in ([], ["--tls-ca", "system"])
        )
        assert short.stdout == long.stdout and b"Usage: elastane " + name.encode() in short.stdout


def test_help_lists_options_and_commands_below_their_headings() -> None:
    def sections(*arguments: str) -> dict[str, str]:
        shown = CliRunner().invoke(build_app(), [*arguments, "--help"], env={"COLUMNS": "200"}).stdout
        parts = re.split(r"^(\S[^\n]*):\n", shown, flags=re.MULTILINE)[1:]
        return dict(zip(parts[::2], parts[1::2], strict=True))

    run = sections("run")
    assert "  --ests N " in run["The job"] and "--ests" not in run["Options"]
    assert "env var: ELASTANE_ESTS; x>=1" in run["The job"]
    assert "  SCRIPT [ARGS]... " in run["Arguments"]
    root = sections()
    assert "  --tls-ca FILE " in root["Connection to the master, before the command"]
    for name, entry in COMMANDS.items():
        is_listed = any(line.split()[:1] == [name] for line in root[entry.panel].splitlines())
        assert is_listed is not entry.hidden, name
    assert "  drain " in sections("ps")["Commands"]


def test_help_imports_nothing_slow() -> None:
    """No command's module for the list of all of them, and nothing heavy for the help of any."""
    code = (
        "import sys\n"
        "from elastane_cli.commands.catalogue import COMMANDS\n"
        "from elastane_cli.commands.main import main\n"
        "def ask(*arguments):\n"
        "    try:\n        main([*arguments, '--help'])\n"
        "    except SystemExit as end:\n        assert end.code == 0\n"
        "def require_none(*names):\n"
        "    slow = {name for name in names if name in sys.modules}\n"
        "    assert not slow, slow\n"
        "ask()\n"
        "require_none(*(f'elastane_cli.commands.{entry.module}' for entry in COMMANDS.values()))\n"
        "for name in set(COMMANDS) - {'master'}:\n"  # that one becomes another program
        "    ask(name)\n"
        "require_none('torch', 'numpy', 'grpc', 'google.protobuf', 'tenacity', 'structlog', 'pydantic')\n"
        "require_none('rich', 'asyncio', 'ssl', 'multiprocessing')\n"
    )
    subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, check=True, capture_output=True)


BECOMES_MASTER = """
import os, sys
from elastane_cli.console import main
def execv(path, arguments):
    print(*arguments[1:])
    print(*{"typer", "dataclasses", "grpc"} & set(sys.modules), file=sys.stderr)
    print(os.environ.get("ELASTANE_TLS_CA", ""), file=sys.stderr)
    os._exit(0)
os.execv = execv
main()
"""


def become_master(*arguments: str, folder: Path, environment: dict[str, str]) -> tuple[list[str], list[str]]:
    """Run a command line up to its exec; return the words of the program, and what was imported for it."""
    done = subprocess.run(
        [sys.executable, "-uc", BECOMES_MASTER, *arguments],
        env=ENVIRONMENT | environment,
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split(), done.stderr.split()


def test_a_master_is_started_before_typer_is_imported(tmp_path: Path) -> None:
    """Its program imports Typer again: twice would be most of the time of `elastane master --help`."""
    program = ["-P", "-m", "elastane_master"]
    reads_files = {"ELASTANE_CONFIG": str(tmp_path / "elastane.toml")}
    for words in (["--help"], ["--listen", "127.0.0.1:0", "--", "-h"]):
        assert become_master("master", *words, folder=tmp_path, environment={}) == ([*program, *words], [])
    (tmp_path / "elastane.toml").write_text('[connection]\ntls-ca = "system"\n')
    listen = ["--listen", "127.0.0.1:0"]
    for before, environment in (([], reads_files), (["--tls-ca", "system"], {})):
        program_with_options, seen = become_master(
            *before, "master", *listen, folder=tmp_path, environment=environment
        )
        assert program_with_options == [*program, *listen] and seen[-1] == "system", seen


def test_a_file_with_an_error_stops_a_master_too(tmp_path: Path) -> None:
    file = tmp_path / "elastane.toml"
    for text in ("[master", "[master]\nlisten = 1\n"):
        file.write_text(text)
        command = [sys.executable, "-c", "from elastane_cli.console import main; main()", "master", "--help"]
        done = subprocess.run(
            command, env=ENVIRONMENT | {"ELASTANE_CONFIG": str(file)}, capture_output=True, text=True
        )
        assert done.returncode == 2 and str(file) in done.stderr, done.stderr


def test_ctrl_c_leaves_quietly(master: FakeMaster) -> None:
    watching = subprocess.Popen(
        [sys.executable, "-u", "-m", "elastane_cli", "events", "--follow", "--json"],
        env={**ENVIRONMENT, "ELASTANE_MASTER": master.address},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert watching.stdout is not None
    for _ in range(3):
        watching.stdout.readline()
    watching.send_signal(signal.SIGINT)
    _, errors = patience.communicate(watching, 60)
    assert watching.returncode == 130
    assert "Traceback" not in errors


def test_master_becomes_the_masters_program(tmp_path: Path) -> None:
    package = tmp_path / "elastane_master"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text("import os, sys; print(os.getpid(), sys.argv[1:])")
    environment = {**ENVIRONMENT, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ENVIRONMENT['PYTHONPATH']}"}
    process = subprocess.Popen(
        [sys.executable, "-m", "elastane_cli", "master", "--listen", ":1", "--help", "x"],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    said, _ = patience.communicate(process, 60)
    assert said.strip() == f"{process.pid} ['--listen', ':1', '--help', 'x']"


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_of_commands_says_what_each_command_says(name: str) -> None:
    command, entry = load(name), COMMANDS[name]
    assert (command.help or "").split("\n\n")[0].replace("\n", " ") == entry.text
    assert command.hidden == entry.hidden
    assert entry.hidden or command.rich_help_panel == entry.panel


def test_every_command_of_a_module_is_in_the_list() -> None:
    for module in {entry.module for entry in COMMANDS.values()}:
        app = typer.Typer()
        importlib.import_module(f"elastane_cli.commands.{module}").register(app)
        assert {command.name for command in app.registered_commands} <= set(COMMANDS), module


def test_a_level_that_does_not_exist_is_a_usage_error() -> None:
    result = CliRunner().invoke(build_app(), ["run", "--ests", "2", "--determinism", "d3", __file__])
    assert result.exit_code == 2
    assert "d0" in result.output and "d2" in result.output


@pytest.mark.parametrize(
    ("script", "module", "name"),
    [
        ("a/b/train.py", False, "train"),
        ("pkg.sub.train", True, "train"),
        ("é è.py", False, "job"),
        ("my script.py", False, "my-script"),
    ],
)
def test_default_job_name(script: str, module: bool, name: str) -> None:
    assert default_job_name(script, module=module) == name


def test_track_knows_of_the_jobs_end_though_the_master_was_away_for_long() -> None:
    class Watcher:
        calls = 0

        def watch_job(self, name: str) -> Iterator[job_pb2.Job]:
            self.calls += 1
            if self.calls == 1:
                raise MasterUnreachableError("no master answered")
            yield job_pb2.Job(phase=job_pb2.JOB_PHASE_RUNNING)
            if self.calls == 3:  # the second time the client was closed
                yield job_pb2.Job(phase=job_pb2.JOB_PHASE_SUCCEEDED, step=7)

    ends: list[int] = []
    watcher, following = Watcher(), SimpleNamespace(finish_at=ends.append)
    _end_with(watcher, "train", following)  # type: ignore[arg-type]
    assert (watcher.calls, ends) == (2, [])
    _end_with(watcher, "train", following)  # type: ignore[arg-type]
    assert (watcher.calls, ends) == (3, [7])


def test_top_needs_a_terminal(master: FakeMaster) -> None:
    result = invoke(master, "top")
    assert result.exit_code == 2 and "status" in result.stderr


def test_curve(master: FakeMaster) -> None:
    drawn = invoke(master, "curve").stdout.splitlines()
    assert drawn[0] == "loss: 0.166667 at the last of 12 steps" and len(drawn) == 12
    assert drawn[1].strip().startswith("2│") and drawn[-1].strip().endswith("11")
    rows = invoke(master, "curve", "train", "-n", "loss", "--csv", "--points", "20").stdout.splitlines()
    assert rows[0] == "name,step,steps,mean,min,max,last" and len(rows) == 13
    assert rows[2].split(",")[:4] == ["loss", "1", "1", "1.0"]
    assert (master.requests[-1].names, master.requests[-1].points_max) == (["loss"], 20)
    told = document(invoke(master, "curve", "--json"))
    assert isinstance(told, dict) and told["series"][0]["points"][1]["step"] == 1
    refused = invoke(master, "curve", "-n", "nonsense")
    assert refused.exit_code == 3 and "nothing was logged as nonsense" in refused.stderr
    master.series = []
    assert "nothing logged yet" in invoke(master, "curve").stdout


def test_what_is_no_number_is_null_in_json(master: FakeMaster) -> None:
    astray = metric_pb2.Point(
        step=0, steps=2, mean=float("nan"), min=1.5, max=float("inf"), last=float("nan")
    )
    master.series = [metric_pb2.Series(name="loss", points=[astray])]
    said = invoke(master, "curve", "--json").stdout
    assert "NaN" not in said and "Infinity" not in said
    (point,) = json.loads(said)["series"][0]["points"]
    assert point == {"step": 0, "steps": 2, "mean": None, "min": 1.5, "max": None, "last": None}


def test_track_writes_each_step_once(master: FakeMaster, tmp_path: Path) -> None:
    for step, generation in ((0, 1), (1, 1), (2, 1), (1, 2), (2, 2)):
        master.steps.append(
            metric_pb2.StepValues(step=step, generation=generation, values={"loss": generation})
        )
    for _ in range(2):  # the second time nothing is left to do
        result = invoke(master, "track", "--to", f"tensorboard:{tmp_path}")
        assert result.exit_code == 0 and "train: 3 steps are in tensorboard" in result.stdout
        master.steps.clear()
    (folder,) = tmp_path.iterdir()
    assert shown(folder)["loss"] == [(0, 1.0), (1, 2.0), (2, 2.0)]
    assert master.requests[-1].after == "9-0"
    assert invoke(master, "track", "--to", "nonsense").exit_code == 3
    (tmp_path / "file").touch()
    result = invoke(master, "track", "--to", f"tensorboard:{tmp_path}/file")
    assert result.exit_code == 3 and "cannot be written: NotADirectoryError" in result.stderr
    assert invoke(master, "track", "--to", "tensorboard:a,tensorboard:b").exit_code == 2


def test_following_events_fails_with_the_watch_of_the_jobs_end() -> None:
    """It would go on after the end of the job."""
    closed = threading.Event()

    class Client:
        def get_job(self, job: str) -> None:
            """It is there."""

        def events(self, job: str, *, since: int, follow: bool = False) -> Iterator[ring_pb2.Event]:
            yield ring_pb2.Event(sequence=since)
            assert follow and closed.wait(20)

        def close(self) -> None:
            closed.set()

    class Watcher(Client):
        def watch_job(self, job: str) -> Iterator[job_pb2.Job]:
            raise MasterUnreachableError("away")

    told = events_command._until_over(Client(), Watcher(), "j", 7)  # type: ignore[arg-type]
    assert next(told).sequence == 7
    with pytest.raises(MasterUnreachableError, match="away"):
        next(told)


def test_a_word_that_is_no_command_leads_to_where_it_is_answered() -> None:
    result = CliRunner().invoke(build_app(), ["dashboard", "train"])
    assert result.exit_code == 2
    assert "elastane master --http" in result.stderr and "No such command 'dashboard'" in result.stderr

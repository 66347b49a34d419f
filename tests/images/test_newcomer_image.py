"""A newcomer's commands in a clean image: Python, pip and the wheel, not root, no clone.

They are those of README.md and docs/howto/running.md (`newcomer_commands.py`), in their order. Those at a
job share one that trains; the last test lets it come to its end.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from typing import Final

import pytest
from hatchling.builders.wheel import WheelBuilder

from elastane_proto.versions import release
from images import newcomer_commands as newcomer
from images.conftest import build
from images.engine import Container, Engine, Outcome

PAGE: Final = newcomer.pages()
TUTORIAL: Final = newcomer.TUTORIAL.read_text()
#: Of a command that trains; two busy cores take their time.
SECONDS_MAX: Final = 1200.0
RUN: Final = next(text for text in newcomer.commands_to_run(PAGE, at_job=False) if " run " in text)

#: What a command must have said beside ending with 0.
SAYS: Final = {
    "elastane run": " finished",
    "elastane verify": "equal",
    "elastane doctor": "severity",
    "python train.py": "loss",
    "elastane status": "running",
    "elastane progress": "todo",
    "elastane top": "running",
    "elastane events": "worker_joined",
    "elastane explain": "worker_joined",
    "elastane report": "-report.html: running",
    "elastane scale": "scaled to 1:2 workers",
    "elastane audit": "every sample of every epoch counts exactly once",
    "elastane errors": "ELA302",
    "elastane --install-completion": "completion",
}
#: Those that go on until Ctrl-C.
FOLLOWS: Final = ("elastane progress --watch", "elastane events --follow")
CTRL_C: Final = 130
#: Their arguments, that they are soon done, and what is seen at their end.
EXAMPLES: Final = {
    "examples/digits_cnn.py": ("--epochs 1", "job succeeded"),
    "examples/char_gpt.py": ("--epochs 1 --characters 20000 --layers 1", "job succeeded"),
    "examples/offline_inference.py": ("--out scores", "113 parts"),
    "examples/minimal.py": ("", "job succeeded"),
}


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    started = Engine()
    try:
        yield started
    finally:
        started.close()


@pytest.fixture(scope="module")
def machine(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Container:
    """The newcomer's machine, with Elastane installed and the scripts of the page in their folder."""
    context = tmp_path_factory.mktemp("newcomer")
    [_wheel] = WheelBuilder(str(newcomer.ROOT)).build(directory=str(context), versions=["standard"])
    shutil.copyfile(newcomer.ROOT / "constraints.txt", context / "constraints.txt")
    shutil.copyfile(newcomer.IMAGE / "Dockerfile", context / "Dockerfile")
    work = context / "work"
    work.mkdir()
    (work / "train.py").write_text(newcomer.three_lines(PAGE))
    shutil.copyfile(newcomer.IMAGE / "train_ddp.py", work / "train_ddp.py")
    for example in newcomer.examples(PAGE):
        (work / example).parent.mkdir(exist_ok=True)
        shutil.copyfile(newcomer.ROOT / example, work / example)
    (work / "tutorial").mkdir()
    for name, text in newcomer.saved_scripts(TUTORIAL).items():
        (work / "tutorial" / name).write_text(text)
    tag = build(engine, "newcomer", context)
    # Their own machine: they may write to it, and nobody is waited for when it is removed.
    return engine.start(tag, arguments=["--read-only=false", "--stop-timeout", "0", "--env", "TERM=xterm"])


def check(command: str, outcome: Outcome, *, code: int = 0) -> None:
    print(f"\n$ {command}\n{outcome.said}")
    assert outcome.code == code, outcome.said
    assert "Traceback" not in outcome.said, outcome.said
    for start, words in SAYS.items():
        if command.startswith(start):
            assert words in outcome.said, outcome.said


def test_elastane_comes_from_the_wheel_alone(machine: Container) -> None:
    code = "import os, elastane; print(os.getuid() != 0, elastane.__file__)"
    said = machine.execute("python", "-c", code)
    assert re.fullmatch(r"True /home/newcomer/venv/lib/\S+/site-packages/elastane/__init__.py\n", said)
    assert machine.shell("command -v git make cc; pip freeze | grep -- '-e '").said == ""


def test_it_says_what_it_is_and_what_there_is(machine: Container) -> None:
    assert machine.shell("elastane --version") == (0, f"elastane {release()}\n")
    alone, asked = machine.shell("elastane"), machine.shell("elastane --help")
    assert alone == asked
    assert alone.code == 0
    assert "doctor" in alone.said


@pytest.mark.parametrize("command", newcomer.commands_to_run(PAGE, at_job=False))
def test_a_command_of_the_page(machine: Container, command: str) -> None:
    check(command, machine.shell(command, SECONDS_MAX))


@pytest.mark.parametrize("example", newcomer.examples(PAGE))
def test_an_example_of_the_page(machine: Container, example: str) -> None:
    arguments, words = EXAMPLES[example]
    command = RUN.partition("#")[0].replace("train.py", f"{example} {arguments}")
    outcome = machine.shell(command, SECONDS_MAX)
    check(command, outcome)
    assert words in outcome.said + machine.shell("echo $(ls -A scores | wc -l) parts").said


@pytest.mark.parametrize(
    ("option", "value"), [("--workers", "4:1"), ("--workers", "8:9"), ("--ests", "two"), ("--ests", "0")]
)
def test_bad_usage_is_named_before_anything_starts(machine: Container, option: str, value: str) -> None:
    command, count = re.subn(rf"{option} \S+", f"{option} {value}", RUN)
    assert count == 1
    before = machine.shell("ls -AR").said
    outcome = machine.shell(command)
    assert outcome.code == 2, outcome.said
    assert option in outcome.said
    assert "Traceback" not in outcome.said
    assert machine.shell("ls -AR").said == before


def test_the_first_hour(machine: Container) -> None:
    outcome = machine.shell(f"set -e; cd tutorial\n{newcomer.shell_script(TUTORIAL)}", SECONDS_MAX)
    check("docs/tutorial.md", outcome)
    for words in ("equal", "its stream ended without Bye", "every sample of every epoch counts exactly once"):
        assert words in outcome.said


def test_the_demo(machine: Container) -> None:
    outcome = machine.shell("elastane demo", SECONDS_MAX)
    check("elastane demo", outcome)
    assert outcome.said.rstrip().endswith("same bits")


# ---------------------------------------------------------------- at a job that trains


class TrainingJob:
    """The page's job in a folder of its own, where it trains slowly until it is let go."""

    def __init__(self, machine: Container) -> None:
        self._machine = machine
        self._values: dict[str, str] = {}
        self.shell("cp ../train.py . && touch hold")
        self.start(RUN, "run")
        self._values["PORT"] = self.wait_for(r"embedded master at 127\.0\.0\.1:([0-9]+)", "run")
        committed = self.shell(
            "until elastane audit | grep 'exactly once'; do [ ! -e run.code ]; done", SECONDS_MAX
        )
        assert committed.code == 0, self.shell("cat run.log").said
        status = json.loads(self.shell("elastane status --json").said)
        self._values |= {"JOB": status["name"], "WORKER": status["workers"][0]["worker_id"]}

    def shell(self, script: str, seconds_max: float = 120.0) -> Outcome:
        """In the job's folder, with its master's address once that is known; until a command fails."""
        # `:` is there that the shell stays, as one at a terminal does: completion asks which shell it is.
        lines = ["set -e", "mkdir -p training", "cd training", self._typed(script), ":"]
        return self._machine.shell("\n".join(lines), seconds_max)

    def start(self, command: str, name: str) -> None:
        """In the background: NAME.pid is its process id, NAME.log what it says, NAME.code how it ended."""
        own = f"(echo $BASHPID > {name}.pid; exec {command}\n) > {name}.log 2>&1"
        self._machine.in_background(
            f"cd training; {self._typed(own)}; echo $? > {name}.part; mv {name}.part {name}.code"
        )

    def wait_for(self, pattern: str, name: str) -> str:
        """The last group of the pattern, once NAME.log has it."""
        seen = f"grep -qsE '{pattern}' {name}.log"
        said = self.shell(
            f"until {seen} || [ -e {name}.code ]; do sleep 0.1; done; cat {name}.log", SECONDS_MAX
        ).said
        found = re.search(pattern, said)
        assert found is not None, said
        return found[found.re.groups]

    def wait(self, name: str) -> Outcome:
        """How a command in the background has ended."""
        ended = f"until [ -e {name}.code ]; do sleep 0.1; done; cat {name}.code {name}.log"
        code, _, said = self.shell(ended, SECONDS_MAX).said.partition("\n")
        return Outcome(int(code), said)

    def _typed(self, script: str) -> str:
        """With what stands at this job for the page's words in capitals."""
        for name, value in self._values.items():
            script = re.sub(rf"\b{name}\b", value, script)
        port = self._values.get("PORT")
        return f"export ELASTANE_MASTER=127.0.0.1:{port}\n{script}" if port else script


@pytest.fixture(scope="module")
def training(machine: Container) -> TrainingJob:
    return TrainingJob(machine)


@pytest.mark.parametrize("command", newcomer.commands_to_run(PAGE, at_job=True))
def test_a_command_of_the_page_at_a_job(training: TrainingJob, command: str) -> None:
    typed = command.partition("#")[0].strip()
    if typed in FOLLOWS:
        name = typed.split()[1]
        training.start(typed, name)
        training.wait_for(SAYS[f"elastane {name}"], name)
        training.shell(f"kill -INT $(cat {name}.pid)")
        check(typed, training.wait(name), code=CTRL_C)
    elif typed == "elastane top":
        # It wants a terminal, and somebody who presses a key.
        keys = "until [ -e top.ended ]; do printf q; sleep 0.2; done"
        terminal = f"script --quiet --return --command '{typed}' /dev/null"
        check(
            typed,
            training.shell(f"{keys} | {{ {terminal}; code=$?; touch top.ended; exit $code; }}"),
        )
    else:
        check(typed, training.shell(typed))


def test_the_job_comes_to_its_end(training: TrainingJob) -> None:
    training.shell("rm hold")
    check(RUN, training.wait("run"))

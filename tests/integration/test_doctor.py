"""`elastane doctor` on scripts with faults: each is found, named, and told from what is right."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from elastane.diagnose.examine import Examination, ScriptFailedError
from elastane.diagnose.findings import Finding, Report, Severity, is_fault
from elastane_cli.commands.main import build_app
from integration.forked_cli import ForkedCommands
from integration.forkserver import ForkServers
from slow import slow, slow_except

SCRIPT = Path(__file__).parent / "scripts" / "doctor_faults.py"


def examine(servers: ForkServers, faults: str, *, ests: int = 2) -> Report:
    command = [str(SCRIPT), *faults.split()]
    return Examination(command, ests=ests, launch=servers.launch).inspect()


def of_kind(report: Report, kind: str) -> list[Finding]:
    return [finding for finding in report.findings if finding.kind == kind]


WIDE = {"COLUMNS": "250"}
RIGHT = "registered --accumulate 2 --data-workers 2"


@pytest.mark.parametrize("options", slow_except(["", RIGHT], RIGHT, further=[""]))
def test_of_a_right_script_nothing_is_said(servers: ForkServers, options: str) -> None:
    report = examine(servers, options)
    assert report.findings == []
    assert report.facts["steps in an epoch"] == ("2" if "--accumulate" in options else "3")
    assert report.facts["registered"] == ("noise" if "registered" in options else "nothing")


def test_a_pipeline_is_examined_as_the_whole_model(servers: ForkServers) -> None:
    """A layer that keeps something from one backward to the next is found, in its step."""
    script = str(SCRIPT.with_name("train_pipeline.py"))

    def run(*options: str) -> Report:
        command = [script, "--size", "24", "--amp", "--accumulation", "2", *options]
        return Examination(command, ests=2, launch=servers.launch).inspect()

    right = run()
    assert right.findings == [] and right.facts["units of the pipeline"] == "7"
    (found,) = run("--flaw").findings
    assert (found.severity, found.kind) == (Severity.DIFFERS, "replay")
    (refused,) = run("--memory", "much").findings
    assert (refused.severity, refused.where) == (Severity.REFUSED, "job.prepare_pipeline")
    assert refused.what.startswith("memory is 'much'")


PUSHES = """
import torch
import elastane

job = elastane.init(seed=3)
model = torch.nn.Sequential(torch.nn.EmbeddingBag(100, 8, sparse=True), torch.nn.Linear(8, 1))
dense = torch.optim.Adam(model[1].parameters(){options})
job.prepare_ps(model, [dense, elastane.RowOptimizer(model[0].parameters(), "sgd", lr=1.0)])
for task in job.tasks("clicks", size=64, task_size=8):
    print("task", task.index)
    {block}
        model(torch.arange(8).view(2, 4)).sum().backward()
raise SystemExit("after the loop")
"""


@pytest.mark.parametrize(
    ("options", "block", "said"),
    [
        pytest.param("", "with job.push(task):", (), marks=slow),
        (", amsgrad=True", "with job.push(task):", ("prepare", "amsgrad", "job.prepare_ps")),
        pytest.param(
            *("", "if False:", ("loop body", "was neither pushed nor skipped", "the loop over job.tasks")),
            marks=slow,
        ),
    ],
    ids=["right", "refused", "not pushed"],
)
def test_tasks_of_parameter_servers_are_examined(
    tmp_path: Path, servers: ForkServers, options: str, block: str, said: tuple[str, ...]
) -> None:
    script = tmp_path / "clicks.py"
    script.write_text(PUSHES.replace("{options}", options).replace("{block}", block))
    report = Examination([str(script)], launch=servers.launch).inspect()
    assert [(one.severity, one.kind, one.where) for one in report.findings] == (
        [(Severity.REFUSED, said[0], said[2])] if said else []
    )
    if said:
        assert said[1] in report.findings[0].what
    else:
        assert report.facts["embeddings by rows"] == "0" and report.facts["dense weights"] == "36 bytes"


def test_generators_of_the_script_are_named_and_are_the_reason(servers: ForkServers) -> None:
    report = examine(servers, "local global")
    found = of_kind(report, "generator")
    assert [finding.where for finding in found] == [
        "doctor_faults.py: main().noise",
        "doctor_faults.py: jitter",
    ]
    assert found[0].todo.startswith('job.register("noise", noise) before prepare')
    (replay,) = of_kind(report, "replay")
    assert "the logged loss" in replay.what
    assert "main().noise" in replay.where
    assert {finding.severity for finding in report.findings} == {Severity.DIFFERS}


def test_a_count_kept_by_the_loop_is_named(servers: ForkServers) -> None:
    report = examine(servers, "counter")
    (found,) = report.findings
    assert (found.severity, found.kind) == (Severity.DIFFERS, "replay")
    assert "the loop carries turns, mean" in found.todo


@slow
def test_a_loop_that_is_left_is_called_that(servers: ForkServers) -> None:
    report = examine(servers, "leaves")
    (found,) = of_kind(report, "break")
    assert found.severity is Severity.REFUSED
    assert "the loader loop was left in step 0, before its end" in found.what
    assert "max_steps=M" in found.todo


def test_what_a_step_must_not_do_is_refused_before_training(servers: ForkServers) -> None:
    report = examine(servers, "unused late")
    assert [finding.what for finding in report.findings] == [
        "spare.weight, spare.bias got no gradient in step 0",
        "job.log(after) came after backward()",
        "random numbers were drawn after backward() in step 0",
    ]
    assert {finding.severity for finding in report.findings} == {Severity.REFUSED}
    (step,) = examine(servers, "no_step").findings
    assert "without optimizer.step()" in step.what


def test_operators_without_deterministic_kernel_are_found_with_their_line(servers: ForkServers) -> None:
    report = examine(servers, "put grid sparse")
    lines = SCRIPT.read_text().splitlines()
    put, grid = of_kind(report, "operator")
    assert put.severity is Severity.REFUSED
    assert "put_(" in lines[int(put.where.removeprefix("doctor_faults.py:")) - 1]
    assert (grid.severity, "grid_sample" in grid.what) == (Severity.NOTE, True)
    assert "backward()" in lines[int(grid.where.removeprefix("doctor_faults.py:")) - 1]
    assert ["codes.weight has a sparse gradient" in f.what for f in of_kind(report, "parameters")] == [True]


@pytest.mark.parametrize("workers", slow_except([0, 2], 2))
def test_a_generator_of_the_dataset_is_refused(servers: ForkServers, workers: int) -> None:
    (found,) = examine(servers, f"dataset --data-workers {workers}").findings
    assert (found.severity, found.where) == (Severity.REFUSED, "the DataLoader")
    assert found.what.startswith("the dataset draws from its own generator, dataset.rng")
    assert "Traceback" not in found.what
    assert 'job.register("rng", dataset.rng)' in found.what + found.todo


@pytest.mark.parametrize(
    ("faults", "severity", "words"),
    [
        pytest.param("in_order --data-workers 1", Severity.REFUSED, "in_order is False", marks=slow),
        pytest.param("stream", Severity.REFUSED, "IterableDataset without states", marks=slow),
        ("stream --data-workers 2", Severity.COSTS, "repeated from the start"),
        ("handle", Severity.REFUSED, "Handle.stream: object of type"),
        pytest.param("option", Severity.REFUSED, "no option bucket_limit", marks=slow),
    ],
)
def test_data_and_objects_that_cannot_be_exact(
    servers: ForkServers, faults: str, severity: Severity, words: str
) -> None:
    (found,) = examine(servers, faults).findings
    assert found.severity is severity
    assert words in found.what
    assert found.todo


@slow
def test_data_that_is_other_when_it_is_made_again(servers: ForkServers) -> None:
    _, fickle = of_kind(examine(servers, "stream fickle --data-workers 1"), "data")
    assert (fickle.severity, fickle.where) == (Severity.REFUSED, "the DataLoader")
    assert "gives different batches when its epoch is repeated" in fickle.what
    (clock,) = examine(servers, "clock").findings
    assert (clock.severity, clock.where) == (Severity.DIFFERS, "the DataLoader")
    assert "step 0 differs in the mini-batch" in clock.what


@slow
def test_faults_beside_a_refused_loader_are_found_too(servers: ForkServers) -> None:
    report = examine(servers, "in_order local counter --data-workers 1")
    assert [finding.kind for finding in report.findings] == ["data", "generator", "replay"]
    assert "turns" in report.findings[-1].todo  # the generator alone does not explain it


def test_a_script_that_fails_is_told_from_a_finding_and_keeps_what_was_found(servers: ForkServers) -> None:
    with pytest.raises(ScriptFailedError) as failed:
        examine(servers, "crash local")
    assert "ValueError: the data is bad" in str(failed.value)
    assert failed.value.report is not None
    assert is_fault(failed.value.report.findings)
    with pytest.raises(ScriptFailedError, match="before its loader loop was examined"):
        examine(servers, "no_loop")


def test_a_script_that_never_ends_is_ended(servers: ForkServers, tmp_path: Path) -> None:
    script = tmp_path / "waits.py"
    script.write_text("import threading\nthreading.Event().wait()\n")
    examination = Examination([str(script)], timeout_seconds=1.0, launch=servers.launch)
    with pytest.raises(ScriptFailedError, match="had not finished after 1 s"):
        examination.inspect()


@slow
def test_the_command_measures_the_cost_of_d2_and_speaks_json() -> None:
    """Its scripts are forked off servers that were started with the variables of D1 and of D2."""
    asked = ["doctor", "--json", "--ests", "2", "--cost-seconds", "0.1", str(SCRIPT)]
    done = CliRunner().invoke(build_app(), asked)
    assert done.exit_code == 1, done.output
    document = json.loads(done.stdout)
    # Without arguments the script has no fault; its source has what they can switch on, by line and variable.
    found = [(f["kind"], f["variable"]) for f in document["findings"] if f["line"]]
    assert found == [("break", ""), ("loop variable", "turns")]
    assert document["exit_code"] == 1
    assert document["facts"]["logical workers (N)"] == "2"
    cost = document["cost"]
    assert 0 < cost["ratio_low"] <= cost["ratio"] <= cost["ratio_high"]
    assert cost["steps"] >= 20
    assert cost["d1_seconds"] > 0


def test_the_command_says_what_where_and_what_to_do(forked_commands: ForkedCommands) -> None:
    done = forked_commands.run(
        *("doctor", "--no-cost", str(SCRIPT), "global"), environment=WIDE, timeout_seconds=120
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "differs" in done.stdout
    assert "doctor_faults.py: jitter" in done.stdout
    assert 'job.register("jitter", jitter)' in done.stdout
    # What these arguments do not switch on is in the source all the same.
    lines = SCRIPT.read_text().splitlines()
    line = next(number for number, text in enumerate(lines, 1) if text.strip() == "break")
    assert f"doctor_faults.py:{line}" in done.stdout and "a break in the loader loop" in done.stdout


@slow
def test_exit_codes(forked_commands: ForkedCommands) -> None:
    runner = CliRunner()
    assert runner.invoke(build_app(), ["doctor"]).exit_code == 0
    assert runner.invoke(build_app(), ["doctor", "no-such-script.py"]).exit_code == 2
    assert runner.invoke(build_app(), ["doctor", "-m"]).exit_code == 2
    failed = forked_commands.run("doctor", "--no-cost", str(SCRIPT), "no_loop", timeout_seconds=120)
    assert failed.returncode == 11
    assert "before its loader loop was examined" in failed.stderr

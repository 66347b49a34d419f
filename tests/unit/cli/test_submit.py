"""`elastane submit` against a training service in memory: what is sent, what is shown, and exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from google.protobuf import json_format
from typer.testing import CliRunner, Result

import patience
from elastane_cli.commands.main import build_app
from elastane_common import layout
from elastane_common.artifacts import write_record
from elastane_common.exit_codes import CODE_REFUSED
from elastane_common.run_record import RunRecord
from elastane_common.storage import Folder
from elastane_proto.v1 import job_pb2, training_pb2
from unit.cli.fake_training import FakeTraining, serving_training
from unit.cli.test_commands import ENVIRONMENT

Train = training_pb2.TrainingServiceTrainRequest


@pytest.fixture
def training(tmp_path: Path) -> Iterator[FakeTraining]:
    fake = FakeTraining((tmp_path / "artifacts").as_uri())
    with serving_training(fake):
        yield fake


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "code" / "train.py"
    path.parent.mkdir()
    path.write_text("print(1)\n")
    return path


def submit(training: FakeTraining, *arguments: object) -> Result:
    return CliRunner().invoke(
        build_app(), ["submit", *map(str, arguments)], env={"ELASTANE_MASTER": training.address}
    )


def ends(state: str, reason: str = "") -> object:
    """A script of states: the run is launched, prints a line, and ends."""

    def script(training: FakeTraining, run_id: int) -> None:
        training.change(run_id, "launching", attempt=1, position=0, reason="2 slots on r1")
        training.change(run_id, "running", reason="1 of 1 instances run")
        training.write(run_id, b"epoch 1\n", over=True)
        training.change(run_id, state, reason=reason, artifact_url="file:///a/runs/1")

    return script


@pytest.mark.parametrize(("state", "code"), [("succeeded", 0), ("failed", 1), ("cancelled", 12)])
def test_the_exit_code_says_how_the_run_ended(
    training: FakeTraining, script: Path, state: str, code: int
) -> None:
    training.script = ends(state, "as it was")
    result = submit(training, "--model", "digits", script, "--epochs", "3")
    assert result.exit_code == code, result.output
    assert result.stdout == "epoch 1\n"
    assert f"run 1: {state}: as it was" in result.stderr and "artifacts: file:///a/runs/1" in result.stderr


def test_the_place_in_the_queue_and_its_reason_are_shown(training: FakeTraining, script: Path) -> None:
    def queued(service: FakeTraining, run_id: int) -> None:
        service.wait_until(lambda: service.sent(training_pb2.TrainingServiceWatchRequest))
        ends("succeeded")(service, run_id)  # type: ignore[operator]

    training.script = queued
    result = submit(training, "--model", "digits", script)
    assert "run 1: queued, 1 of 1: needs 1 slot, 0 free\n" in result.stderr


def test_the_script_its_folder_and_its_settings_are_sent(
    training: FakeTraining, script: Path, tmp_path: Path
) -> None:
    values = tmp_path / "values.toml"
    values.write_text('LR = 0.5\nSHUFFLE = true\nNAME = "a"\n')
    given = [
        "--model", "digits", "--name", "first", "--label", "team=a", "--owner", "ann", "--dataset",
        "mnist@3f0c=s3://data/mnist", "--verify-dataset", "--params", values, "--param", "LR=0.1",
        "--secret", "TOKEN=file:hub", "--secret", "KEY=kubernetes:store/key", "--framework", "pytorch",
        "--instances", "4", "--slots", "2", "--runner-label", "gpu=h100", "--priority", "-5", "--retries",
        "0", "--max-run-time", "90.5", "--grace", "5", "--detach", script, "--epochs", "3",
    ]  # fmt: skip
    result = submit(training, *given)
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("run 1: queued, 1 of 1")
    (request,) = training.sent(Train)
    spec = request.spec
    digest = spec.code.archive_sha256
    assert (tmp_path / "artifacts" / layout.code_archive(digest)).is_file()
    assert list(spec.command) == ["python", "train.py", "--epochs", "3"]
    assert (spec.algorithm, spec.name, spec.output_model_name) == ("train", "first", "digits")
    assert dict(spec.parameters) == {"LR": "0.1", "SHUFFLE": "true", "NAME": "a"}
    assert (spec.dataset.id, spec.dataset.version_hash, spec.dataset.url) == (
        "mnist", "3f0c", "s3://data/mnist",
    )  # fmt: skip
    assert spec.dataset.verify_files and spec.framework == training_pb2.FRAMEWORK_PYTORCH
    assert (spec.instances, spec.slots_per_instance, spec.priority) == (4, 2, -5)
    assert spec.HasField("retries_max") and spec.retries_max == 0
    assert (spec.run_time_max.ToMilliseconds(), spec.grace.seconds) == (90500, 5)
    assert [(each.variable, each.file, each.kubernetes) for each in spec.secrets] == [
        ("TOKEN", "hub", ""),
        ("KEY", "", "store/key"),
    ]
    assert (dict(spec.labels), dict(spec.runner_labels)) == ({"team": "a"}, {"gpu": "h100"})
    assert len(request.request_id) == 32


def test_a_tensorflow_run_has_roles(training: FakeTraining, script: Path) -> None:
    roles = ("--framework", "tensorflow", "--instances", "4", "--chief", "--parameter-servers", "2")
    submit(training, "--model", "digits", "--detach", *roles, script)
    spec = training.sent(Train)[0].spec
    assert (spec.chief, spec.parameter_servers) == (True, 2)


def test_an_elastic_run_has_parameter_servers(training: FakeTraining, script: Path) -> None:
    roles = ("--instances", "4", "--parameter-servers", "2", "--ps-replicas", "1", "--staleness", "0")
    submit(training, "--model", "clicks", "--detach", *roles, script)
    spec = training.sent(Train)[0].spec
    assert (spec.instances, spec.parameter_servers, spec.job.ps_replicas) == (4, 2, 1)
    assert spec.job.HasField("ps_staleness") and spec.job.ps_staleness == 0


def test_what_is_not_given_is_left_to_the_service(training: FakeTraining, script: Path) -> None:
    submit(training, "--model", "digits", "--detach", script)
    spec = training.sent(Train)[0].spec
    set_fields = {field.name for field, _ in spec.ListFields()}
    assert set_fields == {"algorithm", "output_model_name", "code", "command"}
    assert list(spec.command) == ["train.py"]  # elastic: the script itself


def test_the_code_of_a_git_commit_an_image_or_an_algorithm(training: FakeTraining) -> None:
    commit = "0123456789" * 4
    base = ["--model", "m", "--detach"]
    submit(training, *base, "--git", f"git@host:a/b.git@{commit}", "src/train.py", "-x")
    submit(training, *base, "--image", "registry:5000/team/resnet:2", "--framework", "plain", "run", "-v")
    submit(training, *base, "--algorithm", "resnet")
    git, image, algorithm = (request.spec for request in training.sent(Train))
    assert (git.code.git.url, git.code.git.commit) == ("git@host:a/b.git", commit)
    assert (git.algorithm, list(git.command)) == ("train", ["src/train.py", "-x"])
    assert image.code.installed and image.code.image == "registry:5000/team/resnet:2"
    assert (image.algorithm, list(image.command)) == ("resnet", ["run", "-v"])
    assert (algorithm.algorithm, algorithm.HasField("code"), list(algorithm.command)) == ("resnet", False, [])


def test_a_run_like_another_with_other_parameters(training: FakeTraining, script: Path) -> None:
    submit(training, "--model", "m", "--param", "A=1", "--param", "B=1", "--owner", "ann", "--detach", script)
    result = submit(training, "--like", "run-1", "--param", "B=2", "--instances", "2", "--detach")
    assert result.exit_code == 0, result.output
    first, second = (request.spec for request in training.sent(Train))
    assert dict(second.parameters) == {"A": "1", "B": "2"} and second.instances == 2
    assert second.code == first.code and second.command == first.command
    assert second.output_model_name == "m" and second.owner == ""


def recorded(training: FakeTraining, run_id: int, created_at: float | None = None) -> None:
    """Write the record of a run of the service, with settings that were its service's choice."""
    run = training.runs[run_id]
    run.artifact_url = layout.join(training.service.artifact_url, layout.run_folder(run_id))
    record = RunRecord(
        run_id=run_id,
        state="succeeded",
        created_at=run.created.ToNanoseconds() / 1e9 if created_at is None else created_at,
        spec=json_format.MessageToDict(run.spec, preserving_proto_field_name=True),
        parameters=dict(run.spec.parameters),
        seed=7,
        logical_workers=4,
        settings={"ests": 4, "determinism": "DETERMINISM_LEVEL_D2", "torch_threads": 2},
    )
    write_record(run.artifact_url, record)


def test_stages_of_a_pipeline_are_sent_recorded_and_those_of_a_run_like_it(
    training: FakeTraining, script: Path
) -> None:
    asked = ("--pipeline", "2:3", "--shadow", "1", "--model", "m", "--detach")
    assert submit(training, *asked, script).exit_code == 0
    recorded(training, 1)
    assert submit(training, "--like", "1", "--detach").exit_code == 0
    for request in training.sent(Train):
        job = request.spec.job
        assert (job.pipeline_stages_min, job.pipeline_stages_max, job.pipeline_shadows) == (2, 3, 1)
    for wrong in (("--pipeline", "3:2"), ("--shadow", "9"), ("--pipeline", "2", "--framework", "pytorch")):
        refused = submit(training, *wrong, "--model", "m", "--detach", script)
        assert refused.exit_code == 2 and wrong[0] in refused.output, refused.output
    assert len(training.sent(Train)) == 2


@pytest.mark.parametrize("forgotten", [False, True])
def test_a_run_like_another_has_the_settings_of_its_record(
    training: FakeTraining, script: Path, forgotten: bool
) -> None:
    submit(training, "--model", "m", "--owner", "ann", "--priority", "5", "--detach", script)
    recorded(training, 1)
    if forgotten:
        del training.runs[1]
    result = submit(training, "--like", "1", "--detach")
    assert result.exit_code == 0 and result.stderr == "", result.output
    spec = training.sent(Train)[-1].spec
    assert (spec.instances, spec.job.seed, spec.job.torch_threads) == (4, 7, 2)
    assert spec.job.determinism == job_pb2.DETERMINISM_LEVEL_D2
    assert (spec.owner, spec.priority, spec.output_model_name) == ("", 0, "m")
    submit(training, "--like", "1", "--seed", "8", "--threads", "3", "--determinism", "d1", "--detach")
    job = training.sent(Train)[-1].spec.job
    assert (job.seed, job.torch_threads, job.determinism) == (8, 3, job_pb2.DETERMINISM_LEVEL_D1)
    auto = ("--auto", "deadline=2026-12-04T18:00+01:00", "--on-demand-workers", "2")
    submit(training, "--like", "1", *auto, "--over-budget", "suspend", "--detach")
    job = training.sent(Train)[-1].spec.job
    assert (job.scaling, job.on_demand_workers) == ("deadline=1796403600", 2)
    assert job.over_budget == job_pb2.OVER_BUDGET_SUSPEND
    submit(training, "--like", "1", "--framework", "plain", "--detach")
    assert not training.sent(Train)[-1].spec.HasField("job")


def test_a_run_whose_record_is_another_runs_or_damaged_is_taken_as_it_was_submitted(
    training: FakeTraining, script: Path
) -> None:
    submit(training, "--model", "m", "--priority", "5", "--detach", script)
    recorded(training, 1, created_at=1.0)
    result = submit(training, "--like", "1", "--detach")
    assert "run 1 has no record" in result.stderr and not training.sent(Train)[-1].spec.HasField("job")
    assert training.sent(Train)[-1].spec.priority == 0
    Folder(training.runs[1].artifact_url).write(layout.RECORD, [b"{"])
    result = submit(training, "--like", "1", "--detach")
    assert result.exit_code == 0 and "cannot be read: the record is damaged" in result.stderr


def test_a_run_that_is_neither_known_nor_recorded_is_refused(training: FakeTraining) -> None:
    result = submit(training, "--like", "9", "--detach")
    assert result.exit_code == 3 and not training.sent(Train)


def test_the_folder_is_sent_once(training: FakeTraining, script: Path, tmp_path: Path) -> None:
    submit(training, "--model", "m", "--detach", script)
    (stored,) = (tmp_path / "artifacts" / "code").iterdir()
    before = stored.stat().st_ino
    submit(training, "--model", "m", "--detach", script)
    assert [path.stat().st_ino for path in stored.parent.iterdir()] == [before]


def test_code_that_runners_do_not_take_is_not_submitted(
    training: FakeTraining, script: Path, tmp_path: Path
) -> None:
    training.service.archive_bytes_max = 10
    result = submit(training, "--model", "m", script)
    assert result.exit_code == 1 and "runners take at most 10" in result.stderr
    assert training.sent(Train) == [] and not (tmp_path / "artifacts").exists()


def test_a_key_leads_to_the_first_run_and_a_conflict_names_what_differs(
    training: FakeTraining, script: Path
) -> None:
    given = ["--model", "m", "--key", "nightly", "--detach", script]
    first = json.loads(submit(training, "--json", *given).stdout)
    again = json.loads(submit(training, "--json", *given).stdout)
    assert (first["created"], again["created"]) == (True, False)
    assert first["run"]["run_id"] == again["run"]["run_id"] == 1
    assert "(submitted before under this key)" in submit(training, *given).stdout
    result = submit(training, "--priority", "3", "--param", "A=1", *given)
    assert result.exit_code == 3
    assert "another parameters, priority" in result.stderr and "use another key" in result.stderr
    assert len(training.runs) == 1


def test_json_is_one_document_for_each_change(training: FakeTraining, script: Path) -> None:
    training.script = ends("failed", "rank 0 exited with 3")
    result = submit(training, "--model", "m", "--json", script)
    changes = [json.loads(line) for line in result.stdout.splitlines()]
    assert result.exit_code == 1
    assert (changes[-1]["state"], changes[-1]["reason"]) == ("failed", "rank 0 exited with 3")


def test_the_logs_of_all_attempts_are_shown_in_order(training: FakeTraining, script: Path) -> None:
    def two_attempts(service: FakeTraining, run_id: int) -> None:
        service.change(run_id, "running", attempt=1)
        service.write(run_id, b"one\n", over=True)
        service.change(run_id, "queued", reason="next attempt in 1 s")
        service.change(run_id, "running", attempt=2, reason="")
        service.write(run_id, b"two\n", attempt=2, over=True)
        service.change(run_id, "succeeded")

    training.script = two_attempts
    result = submit(training, "--model", "m", script)
    assert (result.exit_code, result.stdout) == (0, "one\ntwo\n")
    assert "run 1: succeeded, attempt 2" in result.stderr


def test_a_break_of_the_streams_is_bridged(training: FakeTraining, script: Path) -> None:
    training.streams_broken = 2
    training.script = ends("succeeded")
    result = submit(training, "--model", "m", script)
    assert (result.exit_code, result.stdout) == (0, "epoch 1\n")


COMMIT = "a" * 40


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["{script}"], "--model"),
        (["--model", " ", "{script}"], "empty"),
        (["--model", "m"], "SCRIPT"),
        (["--model", "m", "--instances", "0", "{script}"], "--instances"),
        (["--model", "m", "--instances", "-1", "{script}"], "--instances"),
        (["--model", "m", "--instances", "3.0", "{script}"], "--instances"),
        (["--model", "m", "--instances", "2", "--instances-min", "3", "{script}"], "--instances-min"),
        (["--model", "m", "--framework", "plain", "--instances-min", "1", "{script}"], "elastic"),
        (["--model", "m", "--param", "a=b", "{script}"], "capital letters"),
        (["--model", "m", "--param", "A", "{script}"], "no ="),
        (["--model", "m", "--param", "=1", "{script}"], "capital letters"),
        (["--model", "m", "--param", "A=1", "--param", "A=2", "{script}"], "given twice"),
        (["--model", "m", "--label", "=1", "{script}"], "name is empty"),
        (["--model", "m", "--framework", "jax", "{script}"], "jax"),
        (["--model", "m", "--algorithm", "resnet", "{script}"], "leave SCRIPT out"),
        (["--model", "m", "--algorithm", "resnet", "--git", f"u@{COMMIT}"], "leave --git out"),
        (["--model", "m", "--algorithm", ""], "empty"),
        (["--model", "m", "--git", "https://host/a", "train.py"], "URL@COMMIT"),
        (["--model", "m", "--git", "https://host/a@main", "train.py"], "URL@COMMIT"),
        (["--model", "m", "--git", f"u@{COMMIT}", "../train.py"], "no path"),
        (["--model", "m", "--git", f"u@{COMMIT}"], "which SCRIPT"),
        (["--model", "m", "--git", f"u@{COMMIT}", "--code", "{folder}", "a.py"], "not both"),
        (["--model", "m", "{script}.missing"], "not a file"),
        (["--model", "m", "--code", "{artifacts}", "{script}"], "--code"),
        (["--model", "m", "--dataset", "mnist", "{script}"], "ID@HASH"),
        (["--model", "m", "--dataset", "mnist@1=", "{script}"], "ID@HASH"),
        (["--model", "m", "--dataset", "a/../b@1", "{script}"], "no id"),
        (["--model", "m", "--secret", "TOKEN=hunter2", "{script}"], "file:NAME"),
        (["--model", "m", "--secret", "TOKEN=file:../x", "{script}"], "file:NAME"),
        (["--model", "m", "--secret", "TOKEN=kubernetes:name", "{script}"], "NAME/KEY"),
        (["--model", "m", "--priority", "1001", "{script}"], "--priority"),
        (["--model", "m", "--grace", "nan", "{script}"], "--grace"),
        (["--model", "m", "--max-run-time", "inf", "{script}"], "--max-run-time"),
        (["--like", "train", "--detach"], "--like"),
        (["--like", "0", "--detach"], "--like"),
    ],
)
def test_bad_input_is_refused_before_anything_is_sent(
    training: FakeTraining, script: Path, tmp_path: Path, arguments: list[str], words: str
) -> None:
    places = {"script": script, "folder": script.parent, "artifacts": tmp_path / "other"}
    places["artifacts"].mkdir()
    result = submit(training, *(text.format(**places) for text in arguments))
    assert result.exit_code == 2, result.output
    assert words in " ".join(result.stderr.replace("│", " ").split())
    assert "hunter2" not in result.stderr
    assert training.requests == []


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("p.json", "[1]", "one object"),
        ("p.json", "{", "as JSON"),
        ("p.toml", "A = ", "as TOML"),
        ("p.json", '{"a": 1}', "capital letters"),
        ("p.json", '{"A": [1]}', "a value is"),
        ("p.json", '{"A": "x\\u0000"}', "a value is"),
        ("p.json", '{"A": null}', "a value is"),
    ],
)
def test_bad_files_of_parameters(
    training: FakeTraining, script: Path, tmp_path: Path, name: str, text: str, words: str
) -> None:
    (tmp_path / name).write_text(text)
    result = submit(training, "--model", "m", "--params", tmp_path / name, script)
    assert result.exit_code == 2 and words in " ".join(result.stderr.replace("│", " ").split())
    assert training.requests == []


def test_the_home_folder_is_not_sent_by_accident(
    training: FakeTraining, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(script.parent))
    result = submit(training, "--model", "m", "--detach", script)
    assert result.exit_code == 2 and "--code" in result.stderr and training.requests == []
    assert submit(training, "--model", "m", "--detach", "--code", script.parent, script).exit_code == 0


def test_an_unreachable_master_after_submission_says_how_to_go_on(
    training: FakeTraining, script: Path
) -> None:

    def goes_on(context: grpc.ServicerContext) -> None:
        """GetService, Train, and the first Watch."""

    def gone(context: grpc.ServicerContext) -> None:
        training.fail_next.append(gone)
        context.abort(grpc.StatusCode.UNAVAILABLE, "gone")

    training.fail_next = [goes_on, goes_on, goes_on, gone]
    training.streams_broken = 1
    result = submit(training, "--model", "m", "--timeout", "0.5", script)
    assert result.exit_code == 4
    assert "run 1 goes on; follow it with `elastane logs -f 1`" in result.stderr


def start(training: FakeTraining, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-u", "-m", "elastane_cli", "submit", *map(str, arguments)],
        env={**ENVIRONMENT, "ELASTANE_MASTER": training.address},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def runs_on(training: FakeTraining, run_id: int) -> None:
    training.change(run_id, "running", attempt=1)
    training.write(run_id, b"epoch 1\n")


def test_ctrl_c_detaches_and_the_run_goes_on(training: FakeTraining, script: Path) -> None:
    training.script = runs_on
    process = start(training, "--model", "m", script)
    assert process.stdout is not None and process.stdout.readline() == "epoch 1\n"
    process.send_signal(signal.SIGINT)
    _, errors = patience.communicate(process, 60)
    assert process.returncode == 130
    assert "run 1 goes on; follow it with `elastane logs -f 1`, end it with `elastane cancel 1`" in errors
    assert "Traceback" not in errors
    assert training.sent(training_pb2.TrainingServiceCancelRequest) == []


def test_ctrl_c_cancels_if_that_is_wanted(training: FakeTraining, script: Path) -> None:
    training.script = runs_on
    process = start(training, "--model", "m", "--cancel-on-interrupt", script)
    assert process.stdout is not None and process.stdout.readline() == "epoch 1\n"
    training.write(1, b"", over=True)
    os.kill(process.pid, signal.SIGINT)
    _, errors = patience.communicate(process, 60)
    assert process.returncode == 12, errors
    assert "run 1: cancelled: on request" in errors and "Traceback" not in errors
    assert len(training.sent(training_pb2.TrainingServiceCancelRequest)) == 1


def test_a_sweep_queues_a_run_for_each_combination(training: FakeTraining, script: Path) -> None:
    sweeps = ("--sweep", "LR=0.1,0.01", "--sweep", "SEED=" + ",".join(map(str, range(60))))
    result = submit(training, "--model", "digits", "--param", "LR=1", "--param", "A=b", *sweeps, script)
    assert result.exit_code == 0, result.output
    calls = training.sent(training_pb2.TrainingServiceTrainManyRequest)
    assert [len(call.specs) for call in calls] == [100, 20]
    parameters = [dict(one.parameters) for call in calls for one in call.specs]
    assert parameters == [
        {"A": "b", "LR": rate, "SEED": str(seed)} for rate in ("0.1", "0.01") for seed in range(60)
    ]
    lines = result.stdout.splitlines()
    assert len(lines) == 120 and lines[-1].startswith("run 120:") and lines[-1].endswith("LR=0.01 SEED=59")
    printed = json.loads(submit(training, "--json", "--model", "m", "--sweep", "A=1,2", script).stdout)
    assert [run["spec"]["parameters"] for run in printed["runs"]] == [{"A": "1"}, {"A": "2"}]


def test_a_file_of_runs_queues_each_on_its_own(training: FakeTraining, script: Path, tmp_path: Path) -> None:
    lines = [{"LR": rate, "SEED": seed} for seed in range(20) for rate in ("bad", 0.1)]
    file = tmp_path / "runs.jsonl"
    file.write_text("\n\n".join(map(json.dumps, lines)))
    asked = ("--model", "digits", "--param", "A=b", "--sweep-file", file, script)
    result = submit(training, *asked)
    assert result.exit_code == CODE_REFUSED, result.output
    sent = [dict(one.spec.parameters) for one in training.sent(training_pb2.TrainingServiceTrainRequest)]
    assert sent == [{"A": "b", "LR": str(line["LR"]), "SEED": str(line["SEED"])} for line in lines]
    said = result.stdout.splitlines()
    assert len(said) == 20 and said[-1].startswith("run 20:") and said[-1].endswith("LR=0.1 SEED=19")
    errors = result.stderr.splitlines()
    assert len(errors) == 21 and errors[-1] == "20 of 40 runs are queued"
    assert errors[0].startswith("refused: LR=bad SEED=0: ") and "spec.parameters: LR" in errors[0]
    printed = json.loads(submit(training, "--json", *asked).stdout)
    assert [run["spec"]["parameters"]["SEED"] for run in printed["runs"]] == [str(n) for n in range(20)]
    assert printed["refused"][1]["parameters"] == {"LR": "bad", "SEED": "1"}
    assert printed["refused"][1]["hint"] == "another rate"
    file.write_text('{"LR": 1}')
    assert submit(training, *asked).exit_code == 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"LR": 1}\n{"lr": 1}', "line 2: 'lr': a name has capital letters"),
        ('{"LR": [1]}', "line 1: 'LR': a value is a text"),
        ("[1]", "line 1 must hold one object"),
        ("LR=1", "cannot be read as lines of JSON"),
        ("\n", "has no line"),
    ],
)
def test_an_invalid_file_of_runs_is_bad_usage(
    training: FakeTraining, script: Path, tmp_path: Path, text: str, words: str
) -> None:
    (tmp_path / "f").write_text(text)
    result = submit(training, "--model", "digits", "--sweep-file", tmp_path / "f", script)
    assert result.exit_code == 2 and words in " ".join(result.stderr.replace("│", " ").split())
    assert not training.requests


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--sweep", "A=1,2", "--sweep-file", "f"], "a sweep has combinations or a file"),
        (["--sweep-file", "absent"], "cannot be read as lines of JSON"),
        (["--sweep", "LR"], "it has no ="),
        (["--sweep", "lr=1,2"], "lr=...: "),
        (["--sweep", "LR=1,1"], "LR: a value is there twice"),
        (["--sweep", "LR=1", "--sweep", "LR=2"], "LR is given twice"),
        (["--sweep", "A=" + ",".join(map(str, range(1001)))], "1001 runs, at most 1000"),
        (["--sweep", "A=1,2", "--key", "k"], "a key identifies one run"),
        (["--sweep", "A=1,2", "--cancel-on-interrupt"], "the runs of a sweep are not followed"),
    ],
)
def test_an_invalid_sweep_is_bad_usage(
    training: FakeTraining, script: Path, options: list[str], words: str
) -> None:
    result = submit(training, "--model", "digits", *options, script)
    assert result.exit_code == 2 and words in " ".join(result.stderr.replace("│", " ").split())
    assert not training.requests

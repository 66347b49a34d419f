"""Commands that look at runs and change them, against a training service in memory."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner, Result

from elastane_cli.commands.log_output import LogOutput
from elastane_cli.commands.main import build_app
from elastane_cli.commands.run_ids import RUN_ID_MAX, parse_name
from elastane_common.client import MasterClient
from elastane_common.training_client import TrainingClient
from elastane_proto.v1 import training_pb2
from unit.cli.fake_training import PIECE_BYTES, FakeTraining, serving_training


@pytest.fixture
def training() -> Iterator[FakeTraining]:
    fake = FakeTraining()
    with serving_training(fake):
        yield fake


def invoke(training: FakeTraining, *arguments: str) -> Result:
    return CliRunner().invoke(build_app(), list(arguments), env={"ELASTANE_MASTER": training.address})


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("17", 17),
        ("run-17", 17),
        ("017", 17),
        (str(RUN_ID_MAX), RUN_ID_MAX),
        ("train", "train"),
        ("17a", "17a"),
        ("run-a", "run-a"),
        ("-17", "-17"),
        ("\u0661\u0667", "\u0661\u0667"),
        ("job/17", "17"),
        ("job/run-17", "run-17"),
    ],
)
def test_a_run_is_told_from_a_job(text: str, name: int | str) -> None:
    assert parse_name(text) == name


@pytest.mark.parametrize("text", ["0", "run-0", str(RUN_ID_MAX + 1), "9" * 5000])
def test_numbers_that_no_run_has(text: str) -> None:
    with pytest.raises(ValueError, match="no run"):
        parse_name(text)


def test_an_unknown_run(training: FakeTraining) -> None:
    for command in ("status", "logs", "retry", "artifacts", "cancel"):
        result = invoke(training, command, "9")
        assert result.exit_code == 3 and "there is no run 9" in result.stderr, command
    assert invoke(training, "retry", "train").exit_code == 2


def test_status_shows_ranks_and_history(training: FakeTraining) -> None:
    run = training.add(17, state=training_pb2.RUN_STATE_FAILED, reason="rank 1 exited with 3", attempt=1)
    run.ranks.add(
        rank=1, state=training_pb2.RankStatus.STATE_EXITED, host="h1", exit_code=3, last_line="boom\x1b[2J"
    )
    run.history.add(state=training_pb2.RUN_STATE_QUEUED, reason="needs 4 slots, 2 free")
    shown = invoke(training, "status", "17").stdout
    for words in ("run 17", "failed: rank 1 exited with 3", "exited", "h1", "boom", "needs 4 slots, 2 free"):
        assert words in shown
    assert "\x1b[2J" not in shown
    assert json.loads(invoke(training, "status", "run-17", "--json").stdout)["state"] == "failed"


def test_jobs_lists_runs_after_jobs(training: FakeTraining) -> None:
    for _ in range(25):
        training.add()
    shown = invoke(training, "jobs").stdout
    assert shown.index("train") < shown.index("25") and "older runs: elastane jobs --runs" in shown
    assert len(json.loads(invoke(training, "jobs", "--runs", "--json").stdout)) == 25
    assert [job["name"] for job in json.loads(invoke(training, "jobs", "--json").stdout)] == ["train"]


def test_the_queue_is_in_its_order(training: FakeTraining) -> None:
    training.add(1, state=training_pb2.RUN_STATE_WAITING_DATA, reason="mnist is being prepared")
    training.add(2, position=2, priority=-7, reason="needs 4 slots, 2 free")
    training.add(3, position=1)
    training.add(4, state=training_pb2.RUN_STATE_RUNNING)
    training.service.runs_waiting, training.service.slots = 3, 8
    assert [run["run_id"] for run in json.loads(invoke(training, "queue", "--json").stdout)] == [3, 2, 1]
    shown = invoke(training, "queue").stdout
    assert "3 runs waiting, 0 of 8 slots in use" in shown and "-7" in shown and "ann" in shown


def test_the_queue_shows_parts_of_the_slots_where_there_are_some(training: FakeTraining) -> None:
    training.add(position=1, queue_length=1, queue="research")
    training.service.queues.add(
        name="research", weight=3, guaranteed={"gpu": 4}, slots_used={"gpu": 2, "cpu": 1}, runs_running=2,
        runs_waiting=1,
    )  # fmt: skip
    training.service.queues.add(name="default", weight=1)
    first, *_ = shown = invoke(training, "queue").stdout.splitlines()
    assert "waiting" in first
    assert shown[1:3] == [
        "queue research: weight 3; guaranteed 4 gpu; has 1 cpu + 2 gpu; 2 runs running, 1 waiting",
        "queue default: weight 1; has no slots; 0 runs running, 0 waiting",
    ]
    assert "QUEUE" in shown[3] and any("research" in line for line in shown[4:])
    training.runs[1].queue = ""
    assert "QUEUE" not in invoke(training, "queue").stdout


def test_the_queue_says_when_a_run_could_start_and_behind_whom(training: FakeTraining) -> None:
    soon = training.add(1, position=1)
    soon.earliest_start.FromSeconds(int(time.time()) + 610)
    holder = soon.holders.add(run_id=7, slots=2)
    holder.until.CopyFrom(soon.earliest_start)
    soon.holders.add(run_id=8, slots=1)
    training.add(2, position=2)
    shown = invoke(training, "queue").stdout
    assert "in 10m" in shown and "unknown" in shown
    assert "run 7 (2, 10m), run 8 (1, unknown)" in " ".join(shown.split())
    first, second = json.loads(invoke(training, "queue", "--json").stdout)
    assert first["earliest_start"] == soon.earliest_start.ToJsonString() and second["earliest_start"] is None
    assert [one["run_id"] for one in first["holders"]] == [7, 8] and first["holders"][1]["until"] is None


def test_why_shows_decisions_and_what_was_rejected(training: FakeTraining) -> None:
    training.add(17, state=training_pb2.RUN_STATE_RUNNING, reason="3 of 4 instances run")
    training.scheduling.policy = "foresight"
    kinds = training_pb2.SchedulingDecision
    for kind, before, after in ((kinds.KIND_GRANTED, 0, 4), (kinds.KIND_TAKEN, 4, 3)):
        decision = training.scheduling.decisions.add(
            run_id=17, policy="foresight", kind=kind, slots_before=before, slots_after=after
        )
        decision.reason, decision.choice = f"it has {after} now", "shortest first"
        decision.rejected.extend(["running jobs keep: +12 s", "least area first: worse, cut off\x1b[2J"])
    training.scheduling.decisions.add(run_id=18, reason="of another")
    shown = " ".join(invoke(training, "why", "17").stdout.split())
    for words in (
        "run 17",
        "granted",
        "0 to 4",
        "taken",
        "4 to 3",
        "it has 3 now",
        "shortest first",
        "+12 s",
    ):
        assert words in shown
    assert "of another" not in shown and "\x1b[2J" not in shown
    document = json.loads(invoke(training, "why", "run-17", "--last", "1", "--json").stdout)
    assert document["policy"] == "foresight" and document["state"] == "running"
    assert [(one["kind"], one["slots_after"]) for one in document["decisions"]] == [("taken", 3)]
    assert document["decisions"][0]["rejected"][0] == "running jobs keep: +12 s"


def test_why_says_where_to_look_if_nothing_was_decided(training: FakeTraining) -> None:
    training.add(1, position=1, reason="needs 4 slots, 2 free")
    shown = " ".join(invoke(training, "why", "1").stdout.split())
    assert "needs 4 slots, 2 free" in shown and "earliest start: unknown" in shown
    assert "elastane status 1" in shown and "--scheduling-policy" in shown
    training.scheduling.policy = "foresight"
    assert "foresight has decided nothing" in " ".join(invoke(training, "why", "1").stdout.split())
    assert invoke(training, "why", "2").exit_code == 3


def test_all_pages_are_listed(training: FakeTraining) -> None:
    for _ in range(7):
        training.add()
    with MasterClient(training.address) as client:
        found = list(TrainingClient(client).iter_runs(page_size=3))
    assert [run.run_id for run in found] == [7, 6, 5, 4, 3, 2, 1]
    assert len(training.sent(training_pb2.TrainingServiceListRequest)) == 3


def test_changes(training: FakeTraining) -> None:
    training.add(1)
    assert "run 1: priority -5; queued" in invoke(training, "priority", "1", "-5").stdout
    assert invoke(training, "priority", "1", "1001").exit_code == 2
    assert invoke(training, "delete", "1", "--yes").exit_code == 3
    assert "run 1: cancelled: on request" in invoke(training, "cancel", "1").stdout
    assert "run 1: queued: retried" in invoke(training, "retry", "1").stdout
    result = invoke(training, "delete", "1", "--yes", "--force", "--keep-artifacts")
    assert result.exit_code == 0, result.output
    assert training.runs == {} and training.requests[-1].keep_artifacts


def test_logs_are_the_bytes_and_tail_the_last_lines(training: FakeTraining) -> None:
    data = b"a\xff\n" * 60_000 + b"last\x1b[0m\nunfinished"
    training.add(1, state=training_pb2.RUN_STATE_SUCCEEDED, attempt=1)
    training.write(1, data, over=True)
    assert invoke(training, "logs", "1").stdout_bytes == data
    assert invoke(training, "logs", "1", "--tail", "2").stdout_bytes == b"last\x1b[0m\nunfinished"
    assert invoke(training, "logs", "1", "-f", "--tail-bytes", "4").stdout_bytes == b"shed"
    tail = invoke(training, "logs", "1", "--tail", "50000").stdout_bytes
    assert data.endswith(tail) and tail.count(b"\n") == 49_999
    assert invoke(training, "logs", "1", "--tail", "1", "--tail-bytes", "1").exit_code == 2


def test_a_slow_reader_gets_every_byte_and_holds_the_rest_back(training: FakeTraining) -> None:
    training.add(1, state=training_pb2.RUN_STATE_SUCCEEDED, attempt=1)
    data = bytes(range(256)) * (PIECE_BYTES * 200 // 256)
    training.write(1, data, over=True)
    training.streams_broken = 1
    with MasterClient(training.address) as client:
        pieces = TrainingClient(client).stream_logs(1, follow=True)
        found = next(pieces).data
        assert training.pieces_sent < 200  # no more than gRPC's windows are on their way
        found += b"".join(piece.data for piece in pieces)
    assert found == data


def test_what_a_terminal_is_shown_is_harmless() -> None:
    stream = io.StringIO()
    output = LogOutput(stream, clean=True)
    for piece in (b"caf\xc3", b"\xa9\r", b"\n10%\r20%\x1b]0;x\x07\xff\xc3"):
        output.write(piece)
    output.end()
    bad = "\N{REPLACEMENT CHARACTER}"
    assert stream.getvalue() == f"caf\u00e9\n10%\n20%{bad}]0;x{bad}{bad}{bad}"


def test_a_master_without_the_service_says_so() -> None:
    from unit.cli.fake_master import FakeMaster, serving

    with serving(FakeMaster()) as address:
        result = CliRunner().invoke(build_app(), ["queue", "--master", address])
    assert result.exit_code == 3 and "this master has no training service" in result.stderr

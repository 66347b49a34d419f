"""A task's block, with slots that say what a test tells them to."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from elastane.runtime import tasks
from elastane.runtime.environment import WorkerEnvironment
from elastane.runtime.leased_ahead import LeasedAhead
from elastane.runtime.slots.dense import DenseMemory
from elastane.runtime.slots.errors import NotPushedError
from elastane.runtime.slots.local import LocalSlots
from elastane.runtime.slots.model import PsArguments, model_parts
from elastane.runtime.slots.prepared import NonFinite, PreparedPs
from elastane.runtime.slots.reports import PushingTasks, report_of
from elastane.runtime.slots.task import PushTask, TaskEnd
from elastane.slots.access import PulledSlots, PushedTask, PushOutcome, SlotAccess, Wanted
from elastane_common.client_errors import RequestRefusedError
from elastane_common.errors import ElastaneError, JobFailedError
from elastane_proto.v1 import shard_pb2
from elastane_slots.pushes import Pulled

DONE = PushOutcome("done", lives_sum=5, staleness=2)


class Slots(SlotAccess):
    """Each pull sees a later version. returned: of pulls under a lease. outcomes: of the next pushes."""

    def __init__(self, inner: LocalSlots) -> None:
        self._inner = inner
        self.pulls: list[tuple[int, int, Wanted]] = []
        self.pushes: list[PushedTask] = []
        self.returned = ""
        self.outcomes: list[PushOutcome | ElastaneError] = []

    def pull(self, lease: int, generation: int, wanted: Wanted) -> PulledSlots:
        self.pulls.append((lease, generation, wanted))
        found = self._inner.pull(lease, generation, wanted)
        seen = dict.fromkeys(wanted.slots, Pulled(1, len(self.pulls)))
        return replace(found, seen=seen, returned=self.returned if lease else "")

    def push(self, task: PushedTask) -> PushOutcome:
        self.pushes.append(task)
        outcome = self.outcomes.pop(0) if self.outcomes else DONE
        if isinstance(outcome, ElastaneError):
            raise outcome
        return outcome


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)
        self.table = nn.Embedding(100, 2, sparse=True)


def prepared(
    nonfinite: NonFinite = "refuse", count: int = 4, **options: Any
) -> tuple[Net, PreparedPs, Slots]:
    net = Net()
    given = PsArguments(net, torch.optim.SGD(net.parameters(), lr=0.1), **options)
    parts = model_parts(given, slots=count)
    memory = DenseMemory(parts.spec, parts.dense)
    slots = Slots(LocalSlots(parts.spec, memory))
    return net, PreparedPs(given, parts, memory, slots, nonfinite), slots


def task(index: int = 0, **fields: Any) -> PushTask:
    return replace(PushTask(0, index, range(1), 1, "data", 7, 3), **fields)


def run(net: Net, model: PreparedPs, own: PushTask, scale: float = 1.0) -> TaskEnd:
    model.begin(own)
    with model.push(own):
        (net.layer(net.table(torch.tensor([1, 2]))).sum() * scale).backward()
        net.table(torch.tensor([2, 3])).sum().backward()
    return model.end().result()


@pytest.mark.parametrize("count", [1, 4])
def test_of_several_pulls_of_a_slot_the_first_counts_and_rows_are_pulled_once(count: int) -> None:
    net, model, slots = prepared(count=count)
    assert run(net, model, task()) == TaskEnd("done", 5, staleness=2)
    assert {(lease, generation) for lease, generation, _ in slots.pulls} == {(7, 3)}
    rows = [int(row) for *_, wanted in slots.pulls for one in wanted.rows for row in one.ids]
    assert sorted(rows) == [1, 2, 3]
    first: dict[int, int] = {}
    for number, (*_, wanted) in enumerate(slots.pulls, 1):
        for slot in wanted.slots:
            first.setdefault(slot, number)
    (pushed,) = slots.pushes
    assert {slot: seen.version for slot, seen in pushed.seen.items()} == first
    assert pushed.gradients.slots == sorted(first)
    assert (pushed.lease, pushed.generation, pushed.index, pushed.dataset) == (7, 3, 0, "data")


def test_rows_said_in_advance_come_with_the_dense_weights() -> None:
    net, model, slots = prepared(rows=lambda indices: {"table": [3, 1, 2, 1]})
    run(net, model, task())
    assert len(slots.pulls) == 1


@pytest.mark.parametrize(("said", "error"), [({"table": [100]}, "no row 100"), ({"other": [1]}, "'other'")])
def test_wrong_rows_said_in_advance_are_refused(said: dict[str, Any], error: str) -> None:
    net, model, slots = prepared(rows=lambda indices: said)
    with pytest.raises(ElastaneError, match=error):
        run(net, model, task())
    assert not slots.pulls


def test_a_task_whose_lease_is_not_served_runs_to_its_end_and_is_given_back() -> None:
    net, model, slots = prepared()
    slots.returned = "slot 2 went back"
    end = run(net, model, task())
    assert end == TaskEnd("returned", error="slot 2 went back") and not slots.pushes
    assert slots.pulls[0][0] == 7 and {lease for lease, *_ in slots.pulls[1:]} == {0}
    (report,) = report_of(task(), end)
    assert report.returned and report.error == "slot 2 went back" and not report.HasField("lives_sum")
    slots.returned = ""
    assert run(net, model, task(lease=8)).kind == "done"


def test_schedulers_that_begin_anew_with_a_worker_are_warned_of_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    net, model, _ = prepared()
    run(net, model, task())
    assert "begin anew" not in "".join(capsys.readouterr())
    for optimizer in model._parts.groups.optimizers:
        torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    for number in range(2):
        run(net, model, task(number))
    assert "".join(capsys.readouterr()).count("schedulers begin anew") == 1


def test_what_is_reported_of_each_end() -> None:
    (done,) = report_of(task(4, epoch=2, attempt=3), TaskEnd("done", 0))
    assert (done.epoch, done.index, done.attempt) == (2, 4, 3)
    assert done.HasField("lives_sum") and done.lives_sum == 0 and not done.error
    assert report_of(task(), TaskEnd("closed")) == []
    (failed,) = report_of(task(), TaskEnd("failed", error="NaN"))
    assert failed.error == "NaN" and failed.non_finite and not failed.returned


@pytest.mark.parametrize("nonfinite", ["refuse", "fail"])
def test_a_gradient_that_is_not_finite_is_reported_and_never_sent(nonfinite: NonFinite) -> None:
    net, model, slots = prepared(nonfinite)
    end = run(net, model, task(), torch.inf)
    assert end.kind == "failed" and "layer.weight" in end.error and not slots.pushes


def test_a_gradient_that_is_not_finite_is_skipped_as_names() -> None:
    net, model, slots = prepared("skip")
    assert run(net, model, task(), torch.nan).kind == "done"
    assert slots.pushes[0].gradients.slots == []


def test_an_evaluation_has_no_lease_and_leaves_no_gradients() -> None:
    net, model, slots = prepared()
    with model.evaluate():
        loss = net.layer(net.table(torch.tensor([1]))).sum()
    assert not loss.requires_grad and {lease for lease, *_ in slots.pulls} == {0}
    assert run(net, model, task()).kind == "done"


def test_pushes_in_the_background_are_reported_when_they_are_answered() -> None:
    net, model, slots = prepared()
    pushing = PushingTasks(model, ahead=2)
    reports = []
    for index in range(5):
        own, later = task(index, lease=index + 1), task(index + 1, lease=index + 2)
        pushing.begin(own)
        pushing.pull_ahead(later)
        with model.push(own) as push:
            net.layer(net.table(torch.tensor([index]))).sum().backward()
        reports += pushing.end_later(own)
        assert push.applied and push.staleness == 2
    reports += pushing.reports(-1)
    assert sorted(report.index for report in reports) == [0, 1, 2, 3, 4]
    # Dense weights of all but the first were pulled before their block.
    assert sum(bool(wanted.dense) for *_, wanted in slots.pulls) == 6


def test_an_error_of_a_push_in_the_background_is_raised_in_the_script() -> None:
    net, model, slots = prepared()
    pushing = PushingTasks(model, ahead=1)
    slots.outcomes = [ElastaneError("no server")]
    own = task()
    pushing.begin(own)
    with model.push(own):
        net.layer(net.table(torch.tensor([1]))).sum().backward()
    with pytest.raises(ElastaneError, match="no server"):
        pushing.end_later(own)
        pushing.reports(-1)


def test_after_the_error_of_one_push_the_others_are_reported() -> None:
    net, model, slots = prepared()
    pushing = PushingTasks(model, ahead=2)
    slots.outcomes = [ElastaneError("no server")]
    tasks = [task(index, lease=index + 1) for index in range(2)]
    with pytest.raises(ElastaneError, match="no server"):
        for own in tasks:
            pushing.begin(own)
            with model.push(own):
                net.layer(net.table(torch.tensor([1]))).sum().backward()
            pushing._on_the_way[end := model.end()] = own
            end.add_done_callback(pushing._answered.put)
        pushing.reports(-1)
    assert [report.index for report in pushing.reports(-1)] == [1]


def test_what_is_read_too_early_is_refused() -> None:
    _, model, _ = prepared()
    own = task()
    model.begin(own)
    push = model.push(own)
    with pytest.raises(NotPushedError, match="not pushed yet"):
        _ = push.applied


class LeasedOnce:
    """A master that leases one task. What `lease_tasks` needs of a source."""

    dataset = "data"
    ready = False

    def __init__(self) -> None:
        self.reports: list[shard_pb2.TaskReport] = []
        self.stream = self.client = self.worker_session = self
        self.leaving = False
        self.sent: list[shard_pb2.LeaseTasksRequest] = []
        self.unanswered: list[shard_pb2.LeaseTasksRequest] = []
        self.gone_through: set[str] = set()
        self.left: set[str] = set()
        self.exits = SimpleNamespace()

    def request(self, finished: Any, most: int, **_: Any) -> shard_pb2.LeaseTasksRequest:
        return shard_pb2.LeaseTasksRequest(completed=finished, max_tasks=most)

    def receive(self) -> shard_pb2.LeaseTasksResponse:
        self.unanswered.pop()
        return shard_pb2.LeaseTasksResponse(tasks=[shard_pb2.Task(index=4, attempt=1, lease=7)])

    def lease_tasks(self, request: shard_pb2.LeaseTasksRequest) -> None:
        self.sent.append(request)
        self.reports += request.completed

    def require_newest(self) -> None: ...

    def send(self, request: shard_pb2.LeaseTasksRequest) -> None:
        self.unanswered.append(request)
        self.reports += request.completed

    def create_dataset(self, *_: Any) -> None: ...

    def close(self) -> None: ...

    def tasks(self, monkeypatch: pytest.MonkeyPatch, name: str, **settings: Any) -> Any:
        """The loop of a script."""
        monkeypatch.setattr(tasks, "MasterClient", lambda *_, **__: self)
        monkeypatch.setattr(tasks, "TaskStream", lambda client, **_: self)
        environment = WorkerEnvironment(mode="elastic", master="m:1", job="j", worker_id="w")
        this: Any = self
        return tasks.lease_tasks(environment, this, name, size=3, task_size=1, **settings)


@pytest.mark.parametrize("ahead", [0, 2])
@pytest.mark.parametrize("pushed", [True, False])
def test_a_task_that_is_pushed_is_reported_where_the_loop_breaks(ahead: int, pushed: bool) -> None:
    net, model, _ = prepared()
    source: Any = LeasedOnce()
    pushes = PushingTasks(model, ahead=ahead)
    loop = (
        tasks._pushed(source, pushes, LeasedAhead(ahead, 1, 60.0), 0)
        if ahead
        else tasks._pushed_one_by_one(source, pushes, 0)
    )
    for own in loop:
        if pushed:
            with model.push(own):
                net.layer(net.table(torch.tensor([1]))).sum().backward()
        break
    loop.close()  # type: ignore[attr-defined]
    assert [(report.index, report.lives_sum) for report in source.reports] == [(4, 5)] * pushed


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("pushes", [False, True])
def test_what_is_leased_is_given_back_where_the_script_leaves_its_loop(
    monkeypatch: pytest.MonkeyPatch, prefetch: int, pushes: bool
) -> None:
    _, model, _ = prepared()
    settings = {"prefetch": prefetch, "pushes": PushingTasks(model, prefetch) if pushes else None}

    def leaves(master: LeasedOnce) -> Any:
        for task in master.tasks(monkeypatch, "data", **settings):
            return task
        return None

    def is_left_by_an_error(master: LeasedOnce) -> None:
        for _ in master.tasks(monkeypatch, "data", **settings):
            raise ValueError("mine")

    def handles_its_error(master: LeasedOnce) -> None:
        try:
            is_left_by_an_error_here = master.tasks(monkeypatch, "data", **settings)
            for _ in is_left_by_an_error_here:
                raise ValueError("mine")
        except ValueError:
            del is_left_by_an_error_here
        assert [request.leaves for request in master.sent] == [True]

    master = LeasedOnce()
    task = leaves(master)
    assert [(one.leaves, one.dataset, one.max_tasks) for one in master.sent] == [(True, "data", 0)]
    assert not master.unanswered and not master.reports
    if pushes:
        with pytest.raises(NotPushedError, match="not in hand"):
            model.push(task)

    def leaves_one_for_another(master: LeasedOnce) -> Any:
        for _ in master.tasks(monkeypatch, "data", **settings):
            break
        yield from master.tasks(monkeypatch, "another", **settings)

    master = LeasedOnce()
    rest = leaves_one_for_another(master)
    next(rest)
    assert [one.dataset for one in master.sent] == ["data"]  # before the first of the other is asked for
    rest.close()
    handles_its_error(LeasedOnce())
    dies = LeasedOnce()
    with pytest.raises(ValueError, match="mine"):
        is_left_by_an_error(dies)
    assert not dies.sent  # its process ends, which counts as a failed attempt


class LeasesAtOnce(LeasedOnce):
    """A master whose answers, of one task each, are there before the script looks."""

    def __init__(self) -> None:
        super().__init__()
        self.leased = 0

    @property
    def ready(self) -> bool:  # type: ignore[override]
        return bool(self.unanswered)

    def receive(self) -> shard_pb2.LeaseTasksResponse:
        self.unanswered.pop(0)
        if self.leased == 6:
            return shard_pb2.LeaseTasksResponse(complete=True)
        self.leased += 1
        leased = shard_pb2.Task(index=self.leased, attempt=1, lease=self.leased)
        return shard_pb2.LeaseTasksResponse(tasks=[leased])


def test_what_every_task_but_the_first_needs_is_pulled_while_another_runs() -> None:
    net, model, _ = prepared()
    source: Any = LeasesAtOnce()
    done, pulled = [], []
    for own in tasks._pushed(source, PushingTasks(model, ahead=2), LeasedAhead(2, 1, 60.0), 0):
        pulled.append(own.lease in model._ahead)
        with model.push(own):
            net.layer(net.table(torch.tensor([own.index]))).sum().backward()
        done.append(own.index)
    assert done == [1, 2, 3, 4, 5, 6]
    assert pulled == [False, False, True, True, True, True]  # how long a task takes is known after the first


class Failed(LeasedOnce):
    """A master whose job has failed, of a gradient that is not finite."""

    def receive(self) -> shard_pb2.LeaseTasksResponse:
        text = "the job is failed: task 3 of data: the gradient of 'dense' has a NaN"
        raise RequestRefusedError(text, reason="wrong_phase", phase="failed")


def test_a_worker_of_a_job_that_has_failed_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    master, errors = Failed(), list[ElastaneError]()
    master.exits.failed = lambda error: errors.append(error) or SystemExit(error.exit_code)
    with pytest.raises(SystemExit):
        list(master.tasks(monkeypatch, "data"))
    assert isinstance(errors[0], JobFailedError) and "has a NaN" in str(errors[0])


class Complete(LeasedOnce):
    """A master whose data sets are done."""

    def receive(self) -> shard_pb2.LeaseTasksResponse:
        self.unanswered.pop()
        return shard_pb2.LeaseTasksResponse(complete=True)

    def list_tasks(self, *_: Any) -> list[Any]:
        return []


def test_a_second_pass_over_a_data_set_is_warned_of(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    master = Complete()
    for count, dataset in enumerate(["one", "two", "one"]):
        assert list(master.tasks(monkeypatch, dataset)) == []
        assert ("all tasks of 'one' are done" in "".join(capsys.readouterr())) is (count == 2)

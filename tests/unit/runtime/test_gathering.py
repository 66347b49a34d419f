"""`job.gather` and `job.reduce`: what they make of the ranks' states, and where they are refused."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from elastane.context import EstContext
from elastane.registry import Registry, from_bytes, to_bytes
from elastane.runtime.elastic import ElasticJob
from elastane.runtime.gathering import all_reduced, reduce_states
from elastane.runtime.job import TurnPlace
from elastane.runtime.trainer import Trainer
from elastane_common.client_errors import RequestRefusedError
from elastane_common.errors import StepError


@pytest.mark.parametrize(
    ("by_rank", "total"),
    [
        ([1.0, 1e8, -1e8], 1.0),  # rank 2, 1, 0: the small one is not lost
        ([1e8, 1.0, -1e8], 0.0),
        ([1e8, -1e8, 1.0], 0.0),
    ],
)
def test_a_value_is_added_in_the_order_of_gloos_ring(by_rank: Sequence[float], total: float) -> None:
    assert all_reduced([torch.tensor([x]) for x in by_rank], "sum").tolist() == [total]


def test_every_part_of_a_long_tensor_begins_with_another_rank() -> None:
    """Chunk c is added from rank c - 1 down: which rank's value survives depends on the place."""
    x = [torch.full((96,), value) for value in (1.0, 1e8, -1e8)]
    found = all_reduced(x, "sum").tolist()
    assert [found[0], found[32], found[64]] == [1.0, 0.0, 0.0]
    assert found == [1.0] * 32 + [0.0] * 64


@pytest.mark.parametrize(
    ("operation", "result"),
    [("sum", 9), ("mean", 3.0), ("max", 5), ("min", 1)],
)
def test_numbers_and_tensors_of_a_dict_are_reduced_one_by_one(operation: str, result: float) -> None:
    states = [{"count": n, "sums": torch.tensor([[float(n)]])} for n in (3, 1, 5)]
    found = reduce_states(states, operation)
    assert found["count"] == result
    assert type(found["count"]) is type(result)
    assert torch.equal(found["sums"], torch.tensor([[float(result)]]))


@pytest.mark.parametrize(
    ("states", "operation", "words"),
    [
        ([1, 2], "product", "was given 'product'"),
        ([torch.zeros(2), torch.zeros(3)], "sum", "differ from rank to rank"),
        ([torch.zeros(2), torch.zeros(2).double()], "sum", "differ from rank to rank"),
        ([{"a": 1}, {"b": 1}], "sum", "other names in other ranks"),
        (["x", "y"], "sum", "was given a str"),
    ],
)
def test_what_cannot_be_reduced_is_named(states: list[Any], operation: str, words: str) -> None:
    with pytest.raises(StepError, match=words):
        reduce_states(states, operation)


class Client:
    """A master that has the states of ranks 1 and 2 at step 7."""

    def get_context(self, job: str, rank: int, step: int) -> Any:
        if step != 7:
            raise RequestRefusedError("no contexts of step are kept", reason="not_found")
        return EstContext(rank, step, {"item/seen": to_bytes("seen", "dict", {"hits": 10 * rank})}).to_proto()


def worker(*, step: int = 7, turn: Any = None) -> tuple[ElasticJob, dict[str, int]]:
    """A worker of three ranks that hosts rank 0, between epochs or in a turn."""
    job, seen = ElasticJob.__new__(ElasticJob), {"hits": 5}
    job.num_ests = 3
    job._registry = Registry()
    job._registry.register("seen", seen)
    own = {0: EstContext(0, step, job._registry.capture())}
    if turn is not None:
        turn.state = SimpleNamespace(contexts=own)
    trainer = Trainer.__new__(Trainer)
    started = SimpleNamespace(started=True, exits=SimpleNamespace(finished=False, start_anew=_start_anew))
    trainer._worker_session = cast(Any, started)
    trainer._protocol = cast(Any, SimpleNamespace(applied_step=step))
    trainer._contexts = cast(Any, SimpleNamespace(now=own))
    trainer.interval = cast(Any, SimpleNamespace(est_step=None, rank=0))
    trainer.steps = cast(
        Any, SimpleNamespace(est_step=turn, once_began=lambda: None, stepped=lambda turn: turn.applied)
    )
    trainer._state = cast(Any, None)
    job._trainer, job._client = trainer, cast(Any, Client())
    job._environment = cast(Any, SimpleNamespace(job="j"))
    return job, seen


def _start_anew(why: str) -> None:
    raise SystemExit(why)


def turn(*, applied: bool) -> Any:
    return SimpleNamespace(
        applied=applied, rank=0, step=6, micro=0, slot=0, guest=None, asked_stepped=False, state=None
    )


def test_the_states_are_those_of_all_ranks_in_order() -> None:
    job, seen = worker()
    assert job.gather(seen) == [{"hits": 5}, {"hits": 10}, {"hits": 20}]
    assert job.reduce(seen) == {"hits": 35}
    assert job.reduce(seen, "max") == {"hits": 20}


def test_in_a_turn_they_are_there_once_the_step_is_applied() -> None:
    job, seen = worker(turn=turn(applied=True))
    assert [one["hits"] for one in job.gather(seen)] == [5, 10, 20]
    job, seen = worker(turn=turn(applied=False))
    with pytest.raises(StepError, match=r"job\.reduce was called in the loader loop") as error:
        job.reduce(seen)
    assert "if job.stepped" in error.value.hint
    assert job._place() == TurnPlace(6, 0, 0, first=True)


def test_an_object_that_was_changed_since_is_refused() -> None:
    job, seen = worker()
    seen["hits"] = 0
    with pytest.raises(StepError, match="'seen' was changed after the loader loop"):
        job.gather(seen)


def test_an_object_that_is_not_registered_is_refused() -> None:
    job, _ = worker()
    with pytest.raises(StepError, match=r"job\.gather was given a dict that is not registered"):
        job.gather({"hits": 5})


@pytest.mark.parametrize("place", ["before the first step", "in each_rank", "after the training"])
def test_where_there_are_no_values_of_all_ranks_it_is_refused(place: str) -> None:
    job, seen = worker(step=0 if place == "before the first step" else 7)
    assert job._trainer is not None
    if place == "in each_rank":
        job._trainer.interval.est_step = 0
    if place == "after the training":
        job._trainer._worker_session.exits.finished = True
    with pytest.raises(
        StepError, match=r"in job\.each_rank" if "each" in place else "outside of the training"
    ):
        job.gather(seen)


def test_a_worker_that_the_job_has_left_behind_starts_anew() -> None:
    job, seen = worker(step=6)
    with pytest.raises(SystemExit, match="the job has gone on or back"):
        job.gather(seen)


def test_the_state_of_an_object_is_as_it_was_registered() -> None:
    registry, total = Registry(), torch.zeros(2)
    registry.register("total", total)
    total += torch.tensor([1.0, 2.0])
    kind, state = from_bytes("total", registry.captured("total"))
    assert kind == "tensor"
    assert torch.equal(state, total)

"""Traces of real training: equal ones are equal, and one twist is found where it was made, and named."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from collections import namedtuple
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from elastane.runtime import script_generators
from elastane.state.value_digests import digest_any, digest_tensor
from elastane_cli.verify.causes import likely_cause, place_in_words
from elastane_cli.verify.compare import (
    Difference,
    RunTrace,
    add_records,
    first_difference,
    read_traces,
)
from unit.verify.traced_training import Net, Twist, elastic, reference, write_trace


@pytest.fixture(scope="module", autouse=True)
def no_other_roots() -> Iterator[None]:
    """What is searched are the roots that a test gives: this process has thousands of modules besides."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(script_generators, "_script_roots", lambda: ([], []))
        yield


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> RunTrace:
    return reference(tmp_path_factory.mktemp("stock"))


def found(stock: RunTrace, folder: Path, twist: Twist) -> Difference:
    difference = first_difference(stock, elastic(folder, twist))
    assert difference is not None
    return difference


def test_equal_runs_have_equal_traces(stock: RunTrace, tmp_path: Path) -> None:
    run = elastic(tmp_path)
    assert first_difference(stock, run) is None
    assert stock.last_step == run.last_step == 3
    assert set(stock.mini_batches) == set(run.mini_batches) == {(s, r, 0) for s in range(4) for r in range(2)}
    mini_batch = run.mini_batches[2, 1, 0][0]
    assert mini_batch.together == {0, 1}
    assert stock.mini_batches[2, 1, 0][0].together == {1}
    # In the order of backward, and each parameter once.
    assert [name for name, _ in mini_batch.ended["gradients"]][:2] == ["last.bias", "last.weight"]
    assert len(mini_batch.ended["gradients"]) == 6
    assert set(run.applied[3][0][1]["buffers"]) == {
        "norm.running_mean",
        "norm.running_var",
        "norm.num_batches_tracked",
    }


def test_a_generator_that_nothing_draws_from_explains_no_difference(tmp_path: Path) -> None:
    """Unseeded, it has another state in each process."""

    def run(states: list[str], value: str) -> RunTrace:
        found = RunTrace()
        for step, state in enumerate(states):
            place = {"step": step, "rank": 0, "micro": 0}
            held = {"rng/numpy": state, "rng/torch": f"drawn {step}"}
            turn = {"kind": "turn", **place, "batch": "", "states": held}
            end = {"kind": "end", **place, "values": {"loss": value}, "gradients": [], "states": held}
            add_records(found, "ddp-0", [turn, end])
        return found

    stock = run(["a", "a"], "1")
    difference = first_difference(stock, run(["b", "b"], "2"))
    assert difference is not None and (difference.what, difference.name) == ("value", "loss")
    assert first_difference(stock, run(["b", "b"], "1")) is None
    difference = first_difference(stock, run(["b", "c"], "2"))
    assert difference is not None and (difference.what, difference.name) == ("state", "rng/numpy")


def divided(folder: Path, twist: Twist | None = None) -> RunTrace:
    """The same as a pipeline of two workers traces it: the second has the last layer alone."""
    elastic(folder, twist)
    [file] = folder.glob("*.jsonl")
    records = [json.loads(line) for line in file.read_text().splitlines()]
    run = RunTrace()
    for worker in range(2):
        mine = []
        for record in records:
            if record["kind"] == "applied":
                parts = {
                    what: {name: d for name, d in record[what].items() if name.startswith("last.") == worker}
                    for what in ("weights", "buffers")
                }
                mine.append({**record, **parts, "partial": True})
            elif record["kind"] == "end":
                own = [one for one in record["gradients"] if one[0].startswith("last.") == worker]
                place = {name: record[name] for name in ("step", "rank", "micro")}
                mine.append({"kind": "backward", "gradients": own, **place})
                mine += [] if worker else [{**record, "gradients": None}]
            elif not worker:
                mine.append(record)
        add_records(run, f"elastic-w{worker}", mine)
    return run


def test_workers_of_a_pipeline_have_traced_their_units(stock: RunTrace, tmp_path: Path) -> None:
    assert first_difference(stock, divided(tmp_path / "same")) is None
    # The same value, with other gradients.
    twist = Twist(loss=lambda step, rank, loss: 2 * loss - loss.detach() if (step, rank) == (2, 1) else loss)
    difference = first_difference(stock, divided(tmp_path / "other", twist))
    assert difference is not None and difference.process == "elastic-w0"
    assert place_in_words(difference) == (
        "step 2, EST 1: the local gradient of norm.weight (and 3 more of 4)"
    ), difference
    assert difference.together == (0, 1)

    def written(step: int, net: torch.nn.Module) -> None:
        if step == 1:
            net.last.bias.data.add_(1)

    difference = first_difference(stock, divided(tmp_path / "third", Twist(applied=written)))
    assert difference is not None and difference.process == "elastic-w1"
    assert place_in_words(difference) == "step 1: the weight last.bias"


def test_another_batch(stock: RunTrace, tmp_path: Path) -> None:
    twist = Twist(batch=lambda step, rank, batch: batch + 1 if (step, rank) == (2, 1) else batch)
    difference = found(stock, tmp_path, twist)
    assert (difference.step, difference.rank, difference.what) == (2, 1, "batch")
    assert difference.process == "elastic-w0" and difference.together == (0, 1)
    assert likely_cause(difference).kind == "data pipeline"
    assert place_in_words(difference) == "step 2, EST 1: the mini-batch"


def test_other_random_numbers(stock: RunTrace, tmp_path: Path) -> None:
    def draw(step: int, rank: int) -> None:
        if (step, rank) == (1, 0):
            np.random.random()

    difference = found(stock, tmp_path, Twist(after=draw))
    assert (difference.step, difference.rank, difference.what) == (1, 0, "state after")
    assert difference.name == "rng/numpy"
    cause = likely_cause(difference)
    assert cause.kind == "random numbers" and "isolated_rng" in cause.hint


def test_another_seed_by_rank(stock: RunTrace, tmp_path: Path) -> None:
    def reseed(step: int, rank: int) -> None:
        if rank == 1 and step == 0:
            torch.manual_seed(9)

    difference = found(stock, tmp_path, Twist(before=reseed))
    assert (difference.step, difference.rank, difference.what) == (0, 1, "state")
    assert likely_cause(difference).kind == "seeds"


def test_another_loss(stock: RunTrace, tmp_path: Path) -> None:
    counter = {"turns": 0}

    def hidden(step: int, rank: int, loss: torch.Tensor) -> torch.Tensor:
        counter["turns"] += 1
        return loss * (2.0 if counter["turns"] == 6 else 1.0)

    difference = found(stock, tmp_path, Twist(loss=hidden))
    assert (difference.step, difference.rank, difference.what, difference.name) == (2, 1, "value", "loss")
    cause = likely_cause(difference)
    assert cause.kind == "hidden state" and "with EST 0" in cause.text


def test_another_gradient_names_the_first_in_backward(stock: RunTrace, tmp_path: Path) -> None:
    def hook(net: Net) -> None:
        net.first.weight.register_hook(lambda grad: grad * 1.5)

    difference = found(stock, tmp_path, Twist(built=hook))
    assert (difference.step, difference.rank, difference.what) == (0, 0, "gradient")
    assert difference.name == "first.weight" and difference.count == 1 and difference.of == 6


def test_other_weights_after_equal_gradients_are_our_fault(stock: RunTrace, tmp_path: Path) -> None:
    def tamper(step: int, net: Net) -> None:
        if step == 1:
            with torch.no_grad():
                net.last.weight.mul_(1 + 1e-6)

    difference = found(stock, tmp_path, Twist(applied=tamper))
    assert (difference.step, difference.rank, difference.what) == (1, None, "weights")
    assert difference.name == "last.weight"
    cause = likely_cause(difference)
    assert cause.ours and cause.kind == "reduction"


def test_another_buffer(stock: RunTrace, tmp_path: Path) -> None:
    def tamper(step: int, net: Net) -> None:
        if step == 3:
            net.norm.num_batches_tracked.add_(1)

    difference = found(stock, tmp_path, Twist(applied=tamper))
    assert (difference.step, difference.what, difference.name) == (3, "buffers", "norm.num_batches_tracked")
    assert likely_cause(difference).kind == "buffers"


def test_an_average_that_changes_too_often(stock: RunTrace, tmp_path: Path) -> None:
    def tamper(step: int, average: nn.Linear) -> None:
        if step == 2:
            with torch.no_grad():
                average.bias.add_(1)

    difference = found(stock, tmp_path, Twist(averaged=tamper))
    assert (difference.step, difference.what, difference.name) == (2, "extras", "average/bias")
    assert likely_cause(difference).kind == "extras"


def test_another_model_to_begin_with(stock: RunTrace, tmp_path: Path) -> None:
    def other(net: Net) -> None:
        with torch.no_grad():
            net.last.bias.add_(1)

    difference = found(stock, tmp_path, Twist(built=other))
    assert (difference.step, difference.what, difference.name) == (-1, "initial weights", "last.bias")
    assert likely_cause(difference).kind == "initial weights"
    assert place_in_words(difference) == "before the first step: the weight last.bias"


class Noise:
    """An object with a generator of its own, as a script's transform may be."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(3)

    def add(self, step: int, rank: int, loss: torch.Tensor) -> torch.Tensor:
        return loss * float(1 + self.rng.random())


def test_an_unregistered_generator_is_named(tmp_path: Path) -> None:
    def with_noise() -> Twist:
        noise = Noise()
        return Twist(loss=noise.add, roots={"transform": noise})

    stock = reference(tmp_path / "stock", rank0=with_noise(), rank1=with_noise())
    difference = first_difference(stock, elastic(tmp_path / "run", with_noise()))
    assert difference is not None
    # Each stock rank's own generator gives the same first number; the shared one gives EST 1 the second.
    assert (difference.step, difference.rank, difference.what) == (0, 1, "value")
    assert difference.generators == ("transform.rng",)
    cause = likely_cause(difference)
    assert cause.kind == "unregistered generator"
    assert "transform.rng" in cause.text and 'job.register("rng", transform.rng)' in cause.hint


def test_an_unseeded_generator_makes_two_references_differ(tmp_path: Path) -> None:
    def unseeded() -> Twist:
        noise = Noise()
        noise.rng = np.random.default_rng()
        return Twist(loss=noise.add, roots={"transform": noise})

    first, second = (
        reference(tmp_path / name, rank0=unseeded(), rank1=unseeded()) for name in ("first", "second")
    )
    difference = first_difference(first, second)
    cause = likely_cause(difference, by_itself=True)
    assert cause.kind == "unregistered generator" and "has no seed" in cause.text and not cause.ours


def test_replays_that_agree_say_nothing_and_those_that_do_not_are_found(
    stock: RunTrace, tmp_path: Path
) -> None:
    write_trace(tmp_path, "elastic-w0", [0, 1])
    write_trace(tmp_path, "elastic-w1", [1])
    assert first_difference(stock, read_traces(tmp_path)) is None
    twist = Twist(logged=lambda step, rank, value: value + (step == 2))
    write_trace(tmp_path, "elastic-w1", [1], twist)
    difference = first_difference(stock, read_traces(tmp_path))
    assert difference is not None and difference.process == "elastic-w1"
    cause = likely_cause(difference)
    assert cause.kind == "kernel", "the EST had the worker for itself"


def test_threads_are_named_when_processes_are_not_alike(stock: RunTrace, tmp_path: Path) -> None:
    run = elastic(tmp_path, Twist(logged=lambda step, rank, value: value * 2))
    run.facts["elastic-w0"]["threads"] = "7"
    cause = likely_cause(first_difference(stock, run))
    assert cause.kind == "environment"
    assert f"threads: {torch.get_num_threads()} in the reference, 7 in elastic-w0" in cause.text


def trace_until_killed(folder: Path) -> None:
    """Write a trace, and die of SIGKILL in step 2."""

    def kill(step: int, rank: int) -> None:
        if step == 2:
            os.kill(os.getpid(), signal.SIGKILL)

    torch.set_num_threads(1)
    write_trace(folder, "elastic-w0", [0, 1], Twist(after=kill))


def test_a_line_that_a_killed_process_left_unfinished_is_passed_over(stock: RunTrace, tmp_path: Path) -> None:
    """Killed by a real SIGKILL between two records, then its last line cut as a full disk would."""
    child = multiprocessing.get_context("forkserver").Process(target=trace_until_killed, args=(tmp_path,))
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    path = tmp_path / "elastic-w0.jsonl"
    whole = read_traces(tmp_path)
    assert (2, 0, 0) in whole.mini_batches and not whole.mini_batches[2, 0, 0][0].ended
    assert first_difference(stock, whole) is None
    path.write_bytes(path.read_bytes()[:-20])
    assert first_difference(stock, read_traces(tmp_path)) is None


def test_a_trace_in_lines_of_json(tmp_path: Path) -> None:
    write_trace(tmp_path, "ddp-0", [0])
    records = [json.loads(line) for line in (tmp_path / "ddp-0.jsonl").read_text().splitlines()]
    assert [record["kind"] for record in records][:5] == ["start", "applied", "turn", "end", "applied"]
    assert records[0]["facts"]["torch"] == torch.__version__
    assert records[1]["step"] == -1
    assert set(records[2]["states"]) == {"rng/python", "rng/numpy", "rng/torch_cpu"}


Pair = namedtuple("Pair", "x y")


@dataclass
class Sample:
    image: torch.Tensor
    name: str


class Odd:
    def __init__(self, number: int) -> None:
        self.number = number


DIFFERENT = [
    torch.zeros(2),
    torch.zeros(2, 1),
    torch.zeros(2, dtype=torch.float64),
    torch.tensor([0.0, -0.0]),
    torch.zeros(2, dtype=torch.bfloat16),
    torch.sparse_coo_tensor([[0]], [1.0], (2,), check_invariants=True),
    np.zeros(2, np.float32),
    np.float32(1),
    1,
    1.0,
    True,
    "1",
    b"1",
    None,
    [1],
    (1,),
    [1, [2]],
    [[1], 2],
    {"a": 1},
    {"a": 2},
    Pair(1, 2),
    Sample(torch.zeros(2), "x"),
    Sample(torch.zeros(2), "y"),
    Odd(1),
    Odd(2),
]


def test_digests_tell_different_batches_apart_and_equal_ones_not() -> None:
    digests = [digest_any(value) for value in DIFFERENT]
    assert len(set(digests)) == len(digests)
    assert digests == [digest_any(value) for value in DIFFERENT]
    assert digest_any(Odd(1)) == digest_any(Odd(1)), "no address enters"
    strided = torch.arange(12.0).reshape(3, 4).t()
    assert digest_tensor(strided) == digest_tensor(strided.contiguous())
    image = torch.randn(2, 3, 4, 4)
    assert digest_tensor(image) == digest_tensor(image.to(memory_format=torch.channels_last))
    endless: list[object] = []
    endless.append(endless)
    assert digest_any(endless)

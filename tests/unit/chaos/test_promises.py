"""The checks after a fault find what they are there for, in traces, histories, steps and events."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from elastane_cli.chaos.promises import Promises, fixed_digests, read_applied
from elastane_cli.chaos.watch import Seen
from elastane_cli.rehearse.faults import ActiveFault
from elastane_proto.v1 import ring_pb2, shard_pb2

ESTS, STEPS_PER_EPOCH = 2, 4


def record(step: int, weights: str = "") -> dict[str, Any]:
    return {
        "kind": "applied", "step": step, "weights": {"w": weights or f"w{step}"}, "optimizer": {},
        "buffers": {}, "extras": {},
    }  # fmt: skip


def write(file: Path, *records: dict[str, Any], end: str = "") -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a") as opened:
        for one in records:
            opened.write(json.dumps(one, separators=(",", ":")) + "\n")
        opened.write(end)


def entries(steps: int) -> list[shard_pb2.AuditEntry]:
    found = []
    for step in range(steps):
        for rank in range(ESTS):
            epoch, within = divmod(step, STEPS_PER_EPOCH)
            start = (within * ESTS + rank) * 2
            entry = shard_pb2.AuditEntry(
                dataset="train", epoch=epoch, step=step, virtual_rank=rank, samples=[start, start + 1]
            )
            entry.range.start, entry.range.end = start, start + 2
            found.append(entry)
    return found


class Client:
    """What `Promises` asks a master."""

    def __init__(self, steps: int) -> None:
        self.entries = entries(steps)
        self.kinds: list[str] = []

    def audit_log(self, job: str) -> Iterator[shard_pb2.AuditEntry]:
        return iter(self.entries)

    def events(self, job: str, *, since: int = 0) -> Iterator[ring_pb2.Event]:
        for number, kind in enumerate(self.kinds):
            if number >= since:
                yield ring_pb2.Event(sequence=number, kind=kind)


def seen(step: int, generation: int = 1) -> Seen:
    return Seen(0.0, step, generation, 2, "", (), -1)


@pytest.fixture
def world(tmp_path: Path) -> SimpleNamespace:
    write(tmp_path / "fixed" / "ddp-0.jsonl", *(record(step) for step in range(8)))
    traces = tmp_path / "trace"
    write(traces / "elastic-w0.jsonl", *(record(step) for step in range(4)))
    promises = Promises(fixed_digests(tmp_path / "fixed"), traces, ESTS, STEPS_PER_EPOCH)
    return SimpleNamespace(promises=promises, client=Client(4), file=traces / "elastic-w0.jsonl")


def broken(world: SimpleNamespace, active: ActiveFault | None = None, *history: Seen) -> list[str]:
    return world.promises.broken(
        world.client, "j", active or ActiveFault(0.0, "x"), seen(3), history or (seen(4),)
    )


def test_nothing_is_broken_where_all_is_well(world: SimpleNamespace) -> None:
    assert broken(world) == []
    world.client.entries = entries(8)
    write(world.file, *(record(step) for step in range(4, 8)))
    assert broken(world) == []
    assert world.promises.steps_compared == set(range(8))


def test_one_bit_of_one_step_is_found(world: SimpleNamespace) -> None:
    write(world.file, record(4, "other"))
    (problem,) = broken(world)
    assert problem == "elastic-w0: weights differ after step 4"
    assert broken(world) == []  # said once


def test_a_step_that_the_fixed_run_has_not(world: SimpleNamespace) -> None:
    write(world.file, record(99))
    assert "step 99, which the fixed run has not" in broken(world)[0]


def test_a_line_that_is_not_finished_is_read_when_it_is(world: SimpleNamespace) -> None:
    text = json.dumps(record(4, "other"), separators=(",", ":"))
    write(world.file, end=text[:30])
    assert broken(world) == []
    write(world.file, end=text[30:] + "\n")
    assert "differ after step 4" in broken(world)[0]


def test_a_trace_begun_anew_by_a_worker_of_the_same_name(world: SimpleNamespace) -> None:
    assert broken(world) == []
    world.file.write_text("")
    write(world.file, record(3, "other"))
    assert "differ after step 3" in broken(world)[0]
    assert read_applied(world.file.with_name("nobody")) == ([], 0)


def test_a_committed_entry_that_is_gone(world: SimpleNamespace) -> None:
    assert broken(world) == []
    world.client.entries = entries(3) + entries(5)[8:]
    problems = broken(world)
    assert problems[0] == "2 of 8 committed entries are gone, or their order changed"
    assert any("step" in problem for problem in problems[1:])  # the audit sees the hole too
    world.client.entries = entries(3)
    assert "are gone" not in " ".join(broken(world, ActiveFault(0.0, "x", may_forget=True)))


def test_a_step_that_was_committed_twice_over(world: SimpleNamespace) -> None:
    twice = entries(4)[-1]
    twice.step = 2
    twice.virtual_rank = 5
    world.client.entries.append(twice)
    assert broken(world)


def test_steps_and_generations_do_not_go_back(world: SimpleNamespace) -> None:
    assert "the committed step went back from 5 to 4" in broken(world, None, seen(5), seen(4))
    assert "the generation went back from 2 to 1" in broken(world, None, seen(4, 2), seen(4, 1))
    assert broken(world, ActiveFault(0.0, "x", may_rewind=True), seen(5), seen(4)) == []


def test_a_fault_nobody_tells_of(world: SimpleNamespace) -> None:
    active = ActiveFault(0.0, "x", expects=("worker_lost",))
    world.client.kinds = ["worker_lost"]
    assert broken(world, active) == []
    assert broken(world, active) == ["no event worker_lost tells of it"]  # that one was of the fault before


def test_what_the_fault_itself_finds_wrong(world: SimpleNamespace) -> None:
    assert broken(world, ActiveFault(0.0, "x", check=lambda: "it did not bite")) == ["it did not bite"]


def test_a_value_that_the_fixed_run_has_not_logged_is_found(tmp_path: Path) -> None:
    """What each committed step has logged is compared."""
    values = {(step, rank, "loss"): float(step + rank).hex() for step in range(8) for rank in range(ESTS)}
    promises = Promises({}, tmp_path, ESTS, STEPS_PER_EPOCH, values)
    client = Client(4)
    for entry in client.entries:
        entry.metrics["loss"] = entry.step + entry.virtual_rank
    world = SimpleNamespace(promises=promises, client=client)
    assert broken(world) == []
    for entry in client.entries[4:]:
        entry.metrics["loss"] += 1e-12
    assert broken(world) == ["EST 0 has logged another loss in step 2, and so on for 3 more"]


def test_a_worker_of_a_pipeline_is_compared_in_its_units(tmp_path: Path) -> None:
    write(tmp_path / "fixed" / "ddp-0.jsonl", {**record(0), "weights": {"0.w": "a", "1.w": "b"}})
    file = tmp_path / "trace" / "elastic-w0.jsonl"
    promises = Promises(fixed_digests(tmp_path / "fixed"), file.parent, ESTS, STEPS_PER_EPOCH)
    write(file, {**record(0), "weights": {"1.w": "b"}, "partial": True})
    assert list(promises.trace_problems()) == [] and promises.steps_compared == {0}
    write(file, {**record(0), "weights": {"1.w": "c"}, "partial": True})
    write(file, {**record(0), "weights": {"2.w": "b"}, "partial": True})
    write(file, {**record(0), "weights": {"1.w": "b"}})
    (problem,) = promises.trace_problems()
    assert "weights differ after step 0, and so on for 2 more" in problem

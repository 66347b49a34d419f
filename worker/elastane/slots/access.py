"""What a task asks of slots, wherever they are: at parameter servers, or in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeVar

from elastane.tables.by_slot import TableIds, TaskGradients
from elastane.tables.layout import Ids
from elastane_slots.pushes import Pulled

Result = TypeVar("Result")


@dataclass(frozen=True)
class Wanted:
    """What is pulled of `slots`, ascending, besides their lives and versions.

    dense: those of which all blocks are. rows: ids by table, of these slots, tables ascending.
    """

    slots: Sequence[int]
    dense: Sequence[int] = ()
    rows: tuple[TableIds, ...] = ()


@dataclass(frozen=True)
class PulledSlots:
    """What was pulled. seen: by slot. blocks: by slot that was asked for them, a section each.

    rows: (table, ids, their values as sent), in parts. returned: why the task is given back; its lease is
    not served any more. Empty: it is not.
    """

    seen: dict[int, Pulled] = field(default_factory=dict)
    blocks: dict[int, Sequence[memoryview]] = field(default_factory=dict)
    rows: list[tuple[int, Ids, memoryview]] = field(default_factory=list)
    returned: str = ""


@dataclass(frozen=True)
class PushedTask:
    """A task's gradients; the same bytes whenever it is sent again.

    To slots without gradients the name goes alone. seen: by slot, as first pulled for the task. later: of
    each request for weights after the first, (slot, life, version). rates: by group of the optimizer.
    """

    dataset: str
    epoch: int
    index: int
    attempt: int
    lease: int
    generation: int
    rates: list[list[float]]
    gradients: TaskGradients
    seen: dict[int, Pulled] = field(default_factory=dict)
    later: list[list[tuple[int, int, int]]] = field(default_factory=list)


@dataclass(frozen=True)
class PushOutcome:
    """What became of a task. done: every slot has it; returned: it is given back, uncounted, and leased
    again; closed: it is FAILED, and nothing of it is applied any more.

    lives_sum: of the lives in the answers, where it is done; map_generations: of the maps that they were
    given by, ascending. staleness: the highest of any slot. versions: by slot, after the push.
    """

    kind: Literal["done", "returned", "closed"]
    reason: str = ""
    lives_sum: int = 0
    staleness: int = 0
    versions: dict[int, int] = field(default_factory=dict)
    map_generations: tuple[int, ...] = ()


class SlotAccess(Protocol):
    """To be inherited from. Thread-safe."""

    def pull(self, lease: int, generation: int, wanted: Wanted) -> PulledSlots:
        """Pull slots. lease: of the task; 0 for an evaluation. generation: of the oldest map that will do.

        Raises PsUnreachableError.
        """

    def push(self, task: PushedTask) -> PushOutcome:
        """Push a task to all slots, by name, until each has said what becomes of it.

        Raises PsUnreachableError.
        """

    def begin_pull(self, lease: int, generation: int, wanted: Wanted) -> Future[PulledSlots]:
        """Begin to `pull`; the future raises its errors. Unless it is overridden, nothing is waited for."""
        return _ended(lambda: self.pull(lease, generation, wanted))

    def begin_push(self, task: PushedTask) -> Future[PushOutcome]:
        """Begin to `push`; the future raises its errors. The gradients must not change until it is done.
        Unless it is overridden, nothing is waited for."""
        return _ended(lambda: self.push(task))


def _ended(call: Callable[[], Result]) -> Future[Result]:
    future: Future[Result] = Future()
    try:
        future.set_result(call())
    except Exception as error:  # noqa: BLE001 - raised where the future is read
        future.set_exception(error)
    return future

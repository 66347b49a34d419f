"""In-memory links: runs all members of a pipeline in one thread, with their blocks in any order.

The process's generators are global, so members never compute at the same time: `run_together` always
continues a member whose frame has arrived.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Generator, Sequence
from typing import Any, Final, Protocol, TypeVar

import torch
from torch import Tensor

from elastane.pipeline.frames import Frame, FrameKey, decode, encode
from elastane.pipeline.links import Links
from elastane.pipeline.waits import FrameWait, RowsWait, Wait

Result = TypeVar("Result")
_CPU: Final = torch.device("cpu")


class LocalHub:
    """Messages in flight between the members in one process.

    changed: maps each frame to the one delivered (tests). device: of the members.
    """

    def __init__(
        self, changed: Callable[[Frame], Frame] = lambda frame: frame, device: torch.device = _CPU
    ) -> None:
        self.frames: dict[tuple[int, int, FrameKey], deque[Frame]] = defaultdict(deque)
        self.rows: dict[tuple[int, int, int], deque[Tensor]] = defaultdict(deque)
        self.changed, self.device = changed, device

    def links(self, me: int) -> LocalLinks:
        """Return the links of a member."""
        return LocalLinks(self, me)


class LocalLinks:
    """Links of member `me` over a hub. Every frame is encoded to bytes and decoded, as between processes."""

    def __init__(self, hub: LocalHub, me: int) -> None:
        self._hub, self._me = hub, me
        self._posted: dict[int, tuple[Tensor, tuple[int, int, int]]] = {}
        self._numbers = 0
        self.receiving_seconds = 0.0

    @property
    def me(self) -> int:
        return self._me

    def send(self, frame: Frame, peer: int) -> None:
        sent = decode(encode(self._hub.changed(frame))[0], self._hub.device)
        self._hub.frames[self._me, peer, frame.key].append(sent)

    def expect(self, key: FrameKey, peer: int) -> None:
        pass

    def receive(self, key: FrameKey, peer: int) -> Frame:
        return self._hub.frames[peer, self._me, key].popleft()

    def send_rows(self, row: Tensor, peer: int, tag: int) -> None:
        self._hub.rows[self._me, peer, tag].append(row.detach().clone())

    def post_rows(self, row: Tensor, peer: int, tag: int) -> int:
        self._numbers += 1
        self._posted[self._numbers] = row, (peer, self._me, tag)
        return self._numbers

    def wait_rows(self, number: int) -> None:
        row, route = self._posted.pop(number)
        row.copy_(self._hub.rows[route].popleft())

    def ready(self, wait: Wait) -> bool:
        """True if what is waited for is there."""
        if isinstance(wait, FrameWait):
            return bool(self._hub.frames[wait.peer, self._me, wait.key])
        return bool(self._hub.rows[self._posted[wait.number][1]])

    def settle(self) -> None:
        pass

    def abandon(self) -> None:
        self._posted.clear()


class LinksOfOneThread(Links, Protocol):
    """Links of a member whose peers run in the same thread, so that it must not block on an unsent frame."""

    def ready(self, wait: Wait) -> bool:
        """True if what is waited for is there, or on its way."""
        ...


def run_together(
    members: Sequence[tuple[LinksOfOneThread, Generator[Wait, Any, Result]]],
    choose: Callable[[Sequence[int]], int] = lambda able: able[0],
) -> list[Result]:
    """Run the members' generators to completion, one block at a time; return their results.

    choose: picks the member to continue among those that can. Raises RuntimeError on deadlock.
    """
    results: dict[int, Result] = {}
    waiting: dict[int, Wait] = {}

    def go_on(member: int, arrived: Any) -> None:
        try:
            waiting[member] = members[member][1].send(arrived)
        except StopIteration as end:
            results[member] = end.value
            waiting.pop(member, None)

    for member in range(len(members)):
        go_on(member, None)
    while waiting:
        able = [member for member, wait in sorted(waiting.items()) if members[member][0].ready(wait)]
        if not able:
            raise RuntimeError(f"the members wait for one another: {waiting}")
        member = choose(able)
        links, wait = members[member][0], waiting[member]
        if isinstance(wait, RowsWait):
            links.wait_rows(wait.number)
            go_on(member, None)
        else:
            go_on(member, links.receive(wait.key, wait.peer))
    return [results[member] for member in range(len(members))]

"""Newcomers that follow a ring, and their sources: what `state_feed` and `ring_follower` do with tensors and
connections, around the unmodified `FeedBook` and `FollowBook`.

In some runs the optimizer writes outside its state, so that a newcomer's copy is not its source's state.
"""

from __future__ import annotations

import random
from collections import deque
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from elastane.collective.ring_errors import RingAborted, RingBroken
from elastane.runtime.feed_book import FeedBook, FollowBook, Given, Reading
from elastane_proto.v1 import ring_pb2
from sim.reference import digest, next_weights

if TYPE_CHECKING:
    from sim.worker_model import WorkerModel
    from sim.world import World

Gradients = dict[int, bytes]
WAITING_MAX = 4
READ_SECONDS = (0.0, 0.02, 0.6)
APPLY_SECONDS = (0.0, 0.001, 0.05)
SEND_SECONDS = (0.0, 0.001, 0.02, 0.2)


def draw(seed: int) -> str:
    """Draw whether newcomers of this run follow: "", "follow", or "differ": the optimizer writes outside its
    state.
    """
    return random.Random(f"following {seed}").choices(("", "follow", "differ"), (5, 4, 1))[0]


class Link:
    """The connection of a newcomer with its source. inbox: what has arrived: kind, step, number, value."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.newcomer: WorkerModel | None = None
        self.inbox: deque[tuple[str, int, int, Any]] = deque()
        self.is_broken = False

    def put(self, kind: str, step: int, number: int, value: Any) -> None:
        """Deliver a message; the sender has waited as long as it takes."""
        self.inbox.append((kind, step, number, value))
        self._notify()

    def disturb(self) -> None:
        """Break the connection; what has arrived can still be read."""
        self.is_broken = True
        self._notify()

    def _notify(self) -> None:
        if self.newcomer is not None:
            self.newcomer.process.call_soon(self.newcomer.notify)


class FollowingModel:
    """One worker's part in following: as a newcomer, and as a source."""

    def __init__(self, worker: WorkerModel, links: dict[bytes, Link]) -> None:
        self.worker, self.world, self._links = worker, worker.world, links
        #: The newcomer gives up.
        self.stops = False
        self._message: ring_pb2.Follow | None = None
        self._link: Link | None = None
        self._book: FeedBook[Gradients] = FeedBook(WAITING_MAX)

    def leave(self) -> None:
        """Break the connection, because the process ends."""
        if self._link is not None:
            self._link.disturb()

    # ------------------------------------------------------------------ the newcomer

    async def follow(self, message: ring_pb2.Follow) -> int:
        """As `RingFollower.follow`."""
        worker, link, book = self.worker, self._connect(message), FollowBook(message.step)
        link.newcomer = worker
        while True:
            await worker.wait_for(lambda: link.inbox or link.is_broken or self.stops)
            if self.stops:
                link.disturb()
                raise RingAborted("the ring changed")
            if not link.inbox:
                raise RingBroken("connection closed by peer")
            kind, step, number, value = link.inbox.popleft()
            await worker.pause(APPLY_SECONDS)
            match kind:
                case "state":
                    worker.lineage, worker.weights = value
                case "given":
                    book.given(step, number)
                    worker.weights = next_weights(worker.weights, value)
                    if worker.script.writes_outside:
                        worker.weights = digest(b"outside", worker.weights)
                case "level":
                    book.reach(step, number)
                    copied = digest_of(worker.weights)
                    worker.tell(lambda step=step, copied=copied: worker.protocol.followed(step, copied))
                case "end":
                    book.reach(step, number)
                    return step

    # ------------------------------------------------------------------ the source

    @property
    def is_feeding(self) -> bool:
        """As `StateFeed.is_feeding`."""
        return self._link is not None and not self._book.is_over

    def feed(self, step: int) -> None:
        """As `StateFeed.at_boundary`."""
        worker, message = self.worker, self.worker.protocol.following.feed
        if message is not None and message.step == step and message != self._message:
            self.leave()
            self._message, self._link, self._book = message, self._connect(message), FeedBook(WAITING_MAX)
            worker.process.spawn(self._send())
        if self._link is None:
            return
        if worker.protocol.changing:
            self._book.end(step)
        elif reading := self._book.at_boundary(step):
            worker.process.spawn(self._read(self._link, self._book, reading))
        worker.notify()

    async def before_step(self, step: int, gradients: Gradients) -> None:
        """Wait until the optimizer may change the state, and note what it is given."""
        book = self._book
        if self._link is None:
            return
        await self.worker.wait_for(lambda: book.may_change)
        book.given(step, dict(gradients), 1)
        self.worker.notify()

    async def _read(self, link: Link, book: FeedBook[Gradients], reading: Reading) -> None:
        worker, step, before = self.worker, book.read_step, self.worker.weights
        await worker.pause(READ_SECONDS)
        if book.failure:
            return  # the optimizer has not waited, and what was read is not sent
        if worker.weights != before:
            self.world.fail("whole copies", f"{worker.name} reads its state of step {step} while it changes")
        if reading == "state":
            link.put("state", step, 0, (worker.lineage, before))
        else:
            worker.tell(lambda: worker.protocol.followed(step, digest_of(before)))
            link.put("level", step, book.calls, None)
        book.read()
        worker.notify()

    async def _send(self) -> None:
        worker, link, book, message = self.worker, self._link, self._book, self._message
        assert link is not None and message is not None
        while True:
            await worker.wait_for(
                lambda: book.failure or (book.is_copied and (book.waiting or book.end_step is not None))
            )
            if book.failure:
                worker.tell(lambda: worker.protocol.feeding_failed(message, book.failure))
                link.disturb()
                return
            given: Given[Gradients] | None = book.next()
            if given is not None:
                await worker.pause(SEND_SECONDS)
                link.put("given", given.step, given.call, given.item)
            elif book.end_step is not None:
                link.put("end", book.end_step, book.calls, None)
                return
            book.sending = False

    def _connect(self, message: ring_pb2.Follow) -> Link:
        return self._links.setdefault(message.SerializeToString(deterministic=True), Link(self.world))


def digest_of(weights: bytes) -> int:
    """Return the digest that workers report of these weights."""
    return int.from_bytes(blake2b(weights, digest_size=8).digest(), "big")

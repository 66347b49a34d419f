"""Links to other parameter servers: messages arrive in order, or the link breaks.

Sending never blocks, because it happens under a slot's lock; a thread opens the connection and writes.
Senders of much data (`elastane_ps.copying`) first wait for room, outside of locks. A broken link stays
broken, as its copies are incomplete; the next copy to the same process gets a new link.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final

import structlog

from elastane.slots.connection import PsConnection, Reply
from elastane.slots.frames import Header, SlotFrameError
from elastane.slots.wire import Piece
from elastane_common.errors import ElastaneError

_log = structlog.get_logger(__name__)

#: Limit of unsent bytes of a copy on one link, which bounds how long a frozen slot waits.
ROOM_BYTES: Final = 16 * 2**20

#: Returns a process's address and secret; None if the map does not contain it.
Address = Callable[[str], tuple[str, bytes] | None]


@dataclass
class _Item:
    header: Header
    body: Sequence[Piece]
    size: int
    #: Called with the answer; None for messages without one.
    done: Callable[[Header | None], None] | None


class PeerLink:
    """A link to one process. broken: called once, with the error. encrypted: whether it is TLS."""

    def __init__(
        self,
        ps_id: str,
        address: Address,
        broken: Callable[[PeerLink, Exception], None],
        *,
        encrypted: bool,
    ) -> None:
        self.ps_id = ps_id
        self._encrypted = encrypted
        #: Held by the copy in progress, so that a frozen slot does not wait for the data of other slots.
        self.turn = threading.Lock()
        self._address, self._broken = address, broken
        self._items: queue.SimpleQueue[_Item | None] = queue.SimpleQueue()
        self._state = threading.Condition()
        self._waiting_bytes = 0
        self.error: Exception | None = None
        self._connection: PsConnection | None = None
        self._thread = threading.Thread(target=self._run, name=f"elastane-link-{ps_id}", daemon=True)
        self._thread.start()

    def send(
        self, header: Header, body: Sequence[Piece] = (), done: Callable[[Header | None], None] | None = None
    ) -> None:
        """Send a message, whose memory must not change until `done`.

        done: called with the answer, or with None if the link breaks first; never under a lock of the caller.
        """
        item = _Item(header, body, sum(map(len, body)), done)
        with self._state:
            if self.error is None:
                self._waiting_bytes += item.size
                self._items.put(item)
                return
        if done is not None:
            # In another thread: the caller holds a slot's lock, which `done` takes.
            threading.Thread(target=done, args=(None,), daemon=True).start()

    def wait_for_room(self) -> bool:
        """Wait until the unsent bytes are below the limit; False if the link is broken."""
        with self._state:
            self._state.wait_for(lambda: self.error is not None or self._waiting_bytes < ROOM_BYTES)
            return self.error is None

    def close(self) -> None:
        """End the link without calling `broken`."""
        self._fail(SlotFrameError(f"the link to {self.ps_id} was closed"), tell=False)

    def _run(self) -> None:
        try:
            told = self._address(self.ps_id)
            if told is None:
                raise SlotFrameError(f"the map does not say where {self.ps_id} is")
            connection = PsConnection(*told, encrypted=self._encrypted, broken=self._fail)
        except (OSError, ValueError, ElastaneError) as error:
            self._fail(error)
            return
        with self._state:
            self._connection = connection
            ended = self.error is not None
        if ended:
            connection.close()
        while (item := self._items.get()) is not None:
            self._write(connection, item)

    def _write(self, connection: PsConnection, item: _Item) -> None:
        done = item.done
        if self.error is not None:
            if done is not None:
                done(None)
            return
        if done is None:
            try:
                connection.tell(item.header, item.body)
            except ElastaneError as error:
                self._fail(error)
        else:
            connection.send(item.header, item.body).add_done_callback(lambda future: done(_answer(future)))
        with self._state:
            self._waiting_bytes -= item.size
            self._state.notify_all()

    def _fail(self, error: Exception, *, tell: bool = True) -> None:
        with self._state:
            if self.error is not None:
                return
            self.error = error
            connection = self._connection
            self._state.notify_all()
        if connection is not None:
            connection.close()
        if tell:
            _log.warning("the link to another parameter server broke", ps=self.ps_id, error=str(error))
            self._broken(self, error)
        self._drop_waiting()

    def _drop_waiting(self) -> None:
        """Call `done` of all unsent messages with None."""
        if threading.current_thread() is not self._thread and self._thread.is_alive():
            self._items.put(None)
            self._thread.join(0.5)
        while True:
            try:
                item = self._items.get_nowait()
            except queue.Empty:
                return
            if item is not None and item.done is not None:
                item.done(None)


class Links:
    """Links by process. Thread-safe. broken: called with a broken link and the error.

    encrypted: all are TLS.
    """

    def __init__(
        self, address: Address, broken: Callable[[PeerLink, Exception], None], *, encrypted: bool
    ) -> None:
        self._address, self._broken, self._encrypted = address, broken, encrypted
        self._lock = threading.Lock()
        self._links: dict[str, PeerLink] = {}

    def to(self, ps_id: str, *, anew: bool = False) -> PeerLink:
        """Return the link to a process. anew: replace a broken one."""
        with self._lock:
            link = self._links.get(ps_id)
            if link is None or (anew and link.error is not None):
                link = self._links[ps_id] = PeerLink(
                    ps_id, self._address, self._broken, encrypted=self._encrypted
                )
            return link

    def close(self) -> None:
        """End all links."""
        with self._lock:
            links = list(self._links.values())
        for link in links:
            link.close()


def _answer(future: Future[Reply]) -> Header | None:
    return None if future.exception() is not None else future.result().header

"""An outbox: entries in a local folder that are sent in order, however often sender or receiver die.

    FOLDER/00000000000000000012.json           waiting to be sent
    FOLDER/refused/00000000000000000007.json   refused by its receiver for good; `reason` says why

`put` only writes a file, by rename, so its callers never wait for the receiver. An entry is removed after it
has been sent; if the sender dies in between, it is sent again, so receivers must ignore duplicates. Only one
process sends from a folder at a time.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec
import structlog

from elastane_common.errors import ElastaneError
from elastane_common.storage import Folder

_log = structlog.get_logger(__name__)

ENTRY_BYTES_MAX: Final = 16 << 20
WAIT_SECONDS_FIRST: Final = 1.0
WAIT_SECONDS_MAX: Final = 60.0
_NAME: Final = re.compile(r"(\d{20})\.json")
_decoder: Final = msgspec.json.Decoder(dict[str, Any])


class OutboxError(ElastaneError):
    """The folder of an outbox cannot be read or written."""

    code = "ELA463"


class RefusedEntryError(Exception):
    """Raised by a receiver that will never accept an entry; the text is the reason."""


class Outbox:
    """The entries of one folder; `put` may be called from several threads. Raises OutboxError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._folder = Folder(str(path), OutboxError)
        self._lock = threading.Lock()
        #: Set by `put`, so that a sender need not poll the folder.
        self.news = threading.Event()
        names = [*self.waiting(), *self.refused()]
        self._next = max((int(name) for name in names), default=0) + 1

    def put(self, entry: dict[str, Any]) -> str:
        """Add an entry of JSON's types, and return its name. It is durable when this returns."""
        data = msgspec.json.encode(entry)
        with self._lock:
            name = f"{self._next:020d}"
            self._folder.write(f"{name}.json", [data])
            self._next += 1
        self.news.set()
        return name

    def waiting(self) -> list[str]:
        """Return the names of the entries that wait, the oldest first."""
        return _names(self.path)

    def refused(self) -> list[str]:
        """Return the names of the entries that were refused."""
        return _names(self.path / "refused")

    def get(self, name: str) -> dict[str, Any]:
        """Return a waiting entry. Raises RefusedEntryError if its file is damaged."""
        data = self._folder.read(f"{name}.json", bytes_max=ENTRY_BYTES_MAX)
        try:
            return _decoder.decode(data or b"")
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise RefusedEntryError(f"the entry is damaged: {error}") from error

    def remove(self, name: str) -> None:
        """Remove an entry that was sent."""
        self._folder.remove_file(f"{name}.json")

    def refuse(self, name: str, reason: str) -> None:
        """Set an entry aside, with the reason."""
        data = self._folder.read(f"{name}.json", bytes_max=ENTRY_BYTES_MAX) or b""
        kept = {"reason": reason, "entry": data.decode(errors="replace")}
        self._folder.write(f"refused/{name}.json", [msgspec.json.format(msgspec.json.encode(kept), indent=1)])
        self.remove(name)


def doubling_wait(failures: int) -> float:
    """Return the delay in seconds after this many failed attempts, from 1."""
    return min(WAIT_SECONDS_FIRST * 2.0 ** min(failures - 1, 16), WAIT_SECONDS_MAX)


class OutboxSender:
    """Sends the entries of an outbox from its own thread.

    send: sends one entry; raises RefusedEntryError if it will never be accepted, any other error to be
    called again with the same entry. wait_seconds: before the next attempt, by the number of failed ones.
    """

    def __init__(
        self,
        outbox: Outbox,
        send: Callable[[dict[str, Any]], None],
        *,
        wait_seconds: Callable[[int], float] = doubling_wait,
    ) -> None:
        self._outbox = outbox
        self._send = send
        self._wait_seconds = wait_seconds
        self._stopping = threading.Event()
        # As a daemon: a receiver that does not answer must not keep the process alive.
        self._thread = threading.Thread(target=self._run, name="elastane-outbox", daemon=True)

    def start(self) -> None:
        """Begin with the oldest entry that waits."""
        self._thread.start()

    def stop(self, timeout_seconds: float = 0.0) -> None:
        """Stop before the next entry; wait at most this long for the current one. The others stay stored."""
        self._stopping.set()
        self._outbox.news.set()
        self._thread.join(timeout_seconds)

    def send_waiting(self) -> None:
        """Send all entries that wait, in order. Raises what `send` raised for one to be sent again."""
        for name in self._outbox.waiting():
            if self._stopping.is_set():
                return
            try:
                self._send(self._outbox.get(name))
            except RefusedEntryError as error:
                _log.error("an entry of the outbox was refused", entry=name, reason=str(error))
                self._outbox.refuse(name, str(error))
            else:
                self._outbox.remove(name)

    def _run(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            self._outbox.news.clear()
            try:
                self.send_waiting()
            except Exception as error:  # noqa: BLE001 - the receiver's library may raise anything
                failures += 1
                if failures == 1:
                    _log.warning(
                        "the outbox waits for its receiver", reason=f"{type(error).__name__}: {error}"
                    )
                self._stopping.wait(self._wait_seconds(failures))
                continue
            failures = 0
            self._outbox.news.wait()


def _names(path: Path) -> list[str]:
    try:
        found = [file.name for file in path.iterdir()]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise OutboxError(f"cannot list {path}: {error.strerror or error}") from error
    return sorted(match[1] for name in found if (match := _NAME.fullmatch(name)))

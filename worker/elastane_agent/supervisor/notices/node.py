"""Watches the spot notices of this node and passes them to its workers; used by both kinds of agent.

Workers get them in two small files of a temporary folder that the agent removes: `notice.json` says when and
why the node is taken away, or which workers are asked to leave; `capacity` says what kind of node it is.
Workers read them when needed, so none of them waits for a cloud's answer.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from elastane_agent.supervisor.notices.detect import AUTO, NONE, choices, chosen_source, detect_source
from elastane_agent.supervisor.notices.fetch import fetcher
from elastane_agent.supervisor.notices.notice import Notice, NoticeFormatError
from elastane_agent.supervisor.notices.sources import CLOUDS, Source
from elastane_agent.supervisor.notices.watch import NoticeWatch
from elastane_common.atomic_writes import write_atomically

#: Timeout while looking for a metadata service; it is on the node itself.
DETECT_TIMEOUT_SECONDS: Final = 1.0
#: Timeout of one that is known to exist; longer, as it may be slow.
LOOK_TIMEOUT_SECONDS: Final = 3.0


class NodeNotices:
    """Spot notices of one node.

    choice: see `detect.check_choice`. url: of the metadata service, instead of the cloud's own.
    poll_seconds: polling interval; 0: as the cloud advises. capacity: "spot", "on-demand", or "auto": ask
    the metadata service.
    """

    def __init__(
        self, choice: str = AUTO, url: str = "", poll_seconds: float = 0.0, capacity: str = AUTO
    ) -> None:
        self._choices = choices(choice)
        self._url = url
        self._poll_seconds = poll_seconds
        self._capacity = capacity
        self._folder = tempfile.TemporaryDirectory(prefix="elastane-agent-")
        self._notice_file = Path(self._folder.name) / "notice.json"
        self._capacity_file = Path(self._folder.name) / "capacity"
        self._watches: list[NoticeWatch] = []
        self._asked: dict[str, dict[str, object]] = {}

    def environment(self) -> dict[str, str]:
        """Return the environment variables through which workers find the two files."""
        variables = {
            "ELASTANE_NOTICE_FILE": str(self._notice_file),
            "ELASTANE_CAPACITY_FILE": str(self._capacity_file),
        }
        return variables if self._capacity == AUTO else {**variables, "ELASTANE_CAPACITY": self._capacity}

    def start(self, on_notice: Callable[[Notice], None], on_trouble: Callable[[str], None]) -> None:
        """Start polling every chosen source.

        The callbacks run in other threads, and are those of `NoticeWatch`: on_notice is called once for each
        source that announces a reclaim.
        """
        for choice in self._choices:
            if choice == NONE:
                continue
            watch = NoticeWatch(
                partial(self._find, choice),
                on_notice=on_notice,
                on_trouble=on_trouble,
                poll_seconds=self._poll_seconds,
                on_source=self._found,
            )
            self._watches.append(watch)
            watch.start()

    def announce(self, seconds: float, reason: str) -> None:
        """Write the notice file: workers that are asked to leave from now on have `seconds` for it."""
        self._write({"at": time.time() + seconds, "reason": reason})

    def announce_to(self, worker: str, seconds: float, reason: str) -> None:
        """Write why one worker is about to be asked to leave, within `seconds`, while the node stays."""
        self._asked[worker] = {"at": time.time() + seconds, "reason": reason}
        self._write({"workers": self._asked})

    def _write(self, content: Mapping[str, object]) -> None:
        """Replace the notice file atomically, because a worker may be reading it."""
        write_atomically(self._notice_file, json.dumps(content))

    def stop(self) -> None:
        """Stop polling and remove the files."""
        for watch in self._watches:
            watch.stop()
        self._folder.cleanup()

    def _find(self, choice: str) -> Source | None:
        slow, quick = fetcher(LOOK_TIMEOUT_SECONDS), fetcher(DETECT_TIMEOUT_SECONDS)
        if (source := chosen_source(choice, slow, self._url)) is not None:
            return source
        found = detect_source(quick, dict.fromkeys(CLOUDS, self._url))
        return chosen_source(found.name, slow, self._url) if found is not None else None

    def _found(self, source: Source) -> None:
        """Write the node's capacity once a source is found, for workers that connect from then on."""
        try:
            capacity = source.capacity()
            if capacity and self._capacity == AUTO:
                write_atomically(self._capacity_file, capacity)
        except (OSError, NoticeFormatError):
            return  # unknown; or the agent has removed the folder already

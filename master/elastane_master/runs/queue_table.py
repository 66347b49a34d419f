"""The file of `--scheduling-queues`: which parts of the service's slots there are, and whose.

[[queue]]
name = "research"
weight = 3                       # its part of what is not guaranteed; default 1
owners = ["ann", "team-*"]       # the first queue that names an owner has its runs
guaranteed = { "*H100*" = 4 }    # slots by device type, names may be patterns
"""

from __future__ import annotations

import tomllib

import msgspec

from elastane_master.decisions.runs.queue_shares import DEFAULT_QUEUE, QueueShare
from elastane_master.decisions.runs.spec import NAME, SLOTS_MAX
from elastane_scheduler.errors import InvalidSettings
from elastane_scheduler.queues import Queue

QUEUES_MAX = 1000


class BadQueueTable(ValueError):  # noqa: N818 - named after the fact
    """The file of queues cannot be used; the text says where and why."""


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    queue: list[QueueShare]


def parse_queues(text: str) -> tuple[QueueShare, ...]:
    """Return the queues of a file, in their order. Raises BadQueueTable."""
    try:
        queues = msgspec.convert(tomllib.loads(text), _File).queue
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise BadQueueTable(str(error)) from None
    if not 0 < len(queues) <= QUEUES_MAX:
        raise BadQueueTable(f"it has {len(queues)} queues; 1 to {QUEUES_MAX} are possible")
    names: set[str] = set()
    for number, queue in enumerate(queues, start=1):
        if problem := _problem(queue, names):
            raise BadQueueTable(f"queue {number} ({queue.name or 'without a name'}) {problem}")
        names.add(queue.name)
    return tuple(queues)


def _problem(queue: QueueShare, names: set[str]) -> str:
    """Return what is wrong with a queue, or ""."""
    if not NAME.fullmatch(queue.name):
        return "needs a name of 1 to 128 letters, digits, dots, dashes and underscores"
    if queue.name in names:
        return "is there twice"
    if not queue.owners and queue.name != DEFAULT_QUEUE:
        return f"has no owners: name some, or call it {DEFAULT_QUEUE}"
    for device_type, slots in queue.guaranteed.items():
        if not 0 <= slots <= SLOTS_MAX:
            return f"is guaranteed {slots} slots of {device_type}; 0 to {SLOTS_MAX} are possible"
    try:
        Queue(queue.name, queue.weight)
    except InvalidSettings as error:
        return f"is refused: {error}"
    return ""

"""Errors of a ring that no longer carries messages; they can be caught without torch."""

from __future__ import annotations

from elastane_common.errors import ElastaneError


class RingError(ElastaneError):
    """The ring of this generation no longer carries messages."""

    code = "ELA316"


class RingAborted(RingError):  # noqa: N818 (a change that was ordered, not a failure)
    """This worker has aborted the ring: its generation is over."""

    code = "ELA317"


class RingBroken(RingError):  # noqa: N818
    """A peer or its connection failed, or was silent for longer than the timeout."""

    code = "ELA318"

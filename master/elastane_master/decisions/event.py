"""Base of the events that decisions are about."""

from __future__ import annotations

import msgspec


class Event(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Base of all events."""

"""Shared secret by which the members of a generation authenticate at their rendezvous store.

Each worker creates a key for its rendezvous store and sends it only to the master (Hello). The group of a
generation meets at its first member's store: the master derives the generation's secret from that member's
key and sends it to the members (Go, and Prepare of a planned change); the store derives the same secret from
its own key.
"""

from __future__ import annotations

import hmac

KEY_BYTES = 32


def group_of(generation: int) -> str:
    """Name of a generation's group."""
    return str(generation)


def follow_group(generation: int, step: int) -> str:
    """Name of the group of a newcomer that follows a generation from `step` on, and its source."""
    return f"{generation}-follow-{step}"


def group_secret(key: bytes, group: str) -> bytes:
    """Derive the secret of one group from a store's key; empty without a key."""
    return hmac.digest(key, group.encode(), "sha256") if key else b""

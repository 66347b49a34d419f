"""The secret of a generation, by which its members know one another where they meet.

Each worker makes a key for its rendezvous store and tells it to the master alone (Hello). The group of a
generation meets at its first member's store: the master makes the generation's secret of that member's key,
and gives it to the members (Go); the store makes the same of the key it has.
"""

from __future__ import annotations

import hmac

KEY_BYTES = 32


def group_of(generation: int) -> str:
    """The name of a generation's group."""
    return str(generation)


def group_secret(key: bytes, group: str) -> bytes:
    """The secret of one group at the store with this key; none without a key."""
    return hmac.digest(key, group.encode(), "sha256") if key else b""

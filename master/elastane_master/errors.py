"""Faults of the master itself."""

from __future__ import annotations

# ruff: noqa: N818 - these say what happened


class MachineBroken(Exception):
    """The decision code failed on an event; the state is as it was before it."""


class CannotListen(Exception):
    """The address cannot be listened on. Attributes: address, hint."""

    code = "ELA201"
    hint = "choose another --listen HOST:PORT, or end what listens there"

    def __init__(self, address: str, why: str) -> None:
        super().__init__(f"cannot listen on {address}: {why}")
        self.address = address

"""Errors of the master process itself."""

from __future__ import annotations

# ruff: noqa: N818 - these say what happened


class MachineBroken(Exception):
    """The decision code failed on an event; the state was restored to what it was before."""


class CannotListen(Exception):
    """The address cannot be bound. Attributes: address, hint."""

    code = "ELA201"
    hint = "choose another --listen HOST:PORT, or end what listens there"

    def __init__(self, address: str, why: str) -> None:
        super().__init__(f"cannot listen on {address}: {why}")
        self.address = address


class TooFewDescriptors(Exception):
    """The process's limit of open descriptors is too low. Attributes: limit, needed, hint."""

    code = "ELA440"
    hint = "raise it: `ulimit -n 4096`, LimitNOFILE= of a systemd unit, --ulimit nofile=4096 of a container"

    def __init__(self, limit: int, needed: int) -> None:
        super().__init__(f"this process may open {limit} descriptors, a master needs {needed}")
        self.limit = limit
        self.needed = needed

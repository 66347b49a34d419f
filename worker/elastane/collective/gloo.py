"""gloo groups: messages of rings whose members do not all have sockets of their own, and their end.

A worker that waits for a silent peer must leave the collective the moment the master announces a change of
membership, and torch offers nothing for that: `ProcessGroupGloo.abort()` does not end a wait. A receive that
times out does: gloo then reports the timeout to every pair of connections of the group, and every wait on one
of them, to send or to receive, raises within milliseconds. So `GlooGroup.abort` starts a receive that no peer
will ever serve, waits a millisecond for it, and the group is dead. Groups are cheap: the next generation
forms its own.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any, Final, Protocol, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import Store

#: A tag that carries no message: a receive on it can only time out.
_SILENT_TAG: Final = (1 << 31) - 1


class _TorchGroup(Protocol):
    """Methods used of `ProcessGroupGloo`, which torch's stubs omit."""

    def send(self, tensors: list[Tensor], peer: int, tag: int) -> dist.Work: ...
    def recv(self, tensors: list[Tensor], peer: int, tag: int) -> dist.Work: ...


class GlooGroup:
    """One generation's gloo group of `size` members, of which this is `rank`."""

    def __init__(self, group: _TorchGroup, rank: int, size: int) -> None:
        #: torch's group.
        self.torch_group = group
        self._peers = [peer for peer in range(size) if peer != rank]

    def send(self, tensor: Tensor, peer: int, tag: int) -> dist.Work:
        """Start to send a contiguous tensor. Raises RuntimeError."""
        return self.torch_group.send([tensor], peer, tag)

    def recv(self, tensor: Tensor, peer: int, tag: int) -> dist.Work:
        """Start to receive into a contiguous tensor. Raises RuntimeError."""
        return self.torch_group.recv([tensor], peer, tag)

    def abort(self) -> None:
        """End all waits, except for a message that is partly sent or received (`ring_thread`)."""
        nothing = torch.empty(1, dtype=torch.uint8)
        for peer in self._peers:
            # A connection that is already closed raises without notifying the others, so try all of them.
            if _times_out(self.torch_group, nothing, peer):
                break


def gloo_group(store: Store, rank: int, size: int, timeout: timedelta, address: str) -> GlooGroup:
    """Build a group whose connections bind to `address`, unless the user names an interface for gloo.

    gloo's default is the address that the host's name resolves to, which in a container may be anything.
    Raises RuntimeError.
    """
    gloo = cast(Any, dist).ProcessGroupGloo
    options = gloo._Options()
    options._timeout = timeout
    if os.environ.get("GLOO_SOCKET_IFNAME"):
        options._devices = [gloo.create_default_device()]
    else:
        options._devices = [gloo.create_device(hostname=address)]
    return GlooGroup(gloo(store, rank, size, options), rank, size)


def announcement_key(rank: int) -> str:
    """Name of the first key that a member's gloo group writes to the store while it is built."""
    return f"0/{rank}"


def _times_out(group: _TorchGroup, nothing: Tensor, peer: int) -> bool:
    """True if a receive from `peer` really timed out, which ends all waits of the group."""
    try:
        work = group.recv([nothing], peer, _SILENT_TAG)
    except RuntimeError:
        return False
    try:
        work.wait(timedelta(milliseconds=1))
    except RuntimeError as error:
        return "Timed out" in str(error)
    raise AssertionError("a message came on the silent tag")

"""A transport that kills its process in the middle of a transfer."""

from __future__ import annotations

import os
import signal

import torch

from elastane.collective.transport import RingTransport, Transfer


class DyingTransport:
    """Kills its own process at the given send: nothing is flushed, no connection is closed by it."""

    def __init__(self, transport: RingTransport, sends: int) -> None:
        self._transport, self._left = transport, sends

    def send(self, tensor: torch.Tensor, peer: int, tag: int) -> Transfer:
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return self._transport.send(tensor, peer, tag)

    def recv(self, tensor: torch.Tensor, peer: int, tag: int) -> Transfer:
        return self._transport.recv(tensor, peer, tag)

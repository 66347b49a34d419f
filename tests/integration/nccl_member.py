"""A member of NCCL rings on one GPU: commands come from stdin, answers are lines that begin with "> ".

form PREFIX RANK SIZE    form a ring
sum ELEMENTS             all-reduce; prints sha256 of the result
start ELEMENTS           the same in a thread, as a worker does; `finish` prints how it ended
abort, finish, close
"""

from __future__ import annotations

import hashlib
import os
import sys
import threading

import torch

from elastane.collective.allreduce import CanonicalAllreduce
from elastane.collective.ring_errors import RingError
from elastane.collective.ring_thread import RingThread
from elastane.collective.transport import RingTransport

ESTS_EACH = 2


class Member:
    """This process's part in one ring after the other."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._device = torch.device("cuda", 0)
        self._stream = torch.cuda.Stream(self._device)
        self._ring: RingTransport
        self._thread: RingThread
        self._plan: CanonicalAllreduce

    def form(self, prefix: str, rank: str, size: str) -> str:
        self._ring = RingTransport.form(
            store_address=self._address,
            prefix=prefix,
            rank=int(rank),
            size=int(size),
            cancel=threading.Event(),
            device=self._device,
        )
        self._thread = RingThread("sums", self._ring)
        return "formed"

    def start(self, elements: str) -> str:
        size = self._ring.size
        ranges = [(ESTS_EACH * host, ESTS_EACH * (host + 1)) for host in range(size)]

        def memory(count: int, *, shared: bool = False) -> torch.Tensor:
            return torch.empty(count, device=self._device)

        self._plan = CanonicalAllreduce(int(elements), torch.float32, ranges, self._ring.rank, memory)
        for slot, rank in zip(self._plan.slots, range(*ranges[self._ring.rank]), strict=True):
            slot.copy_(vector(rank, int(elements)))
        torch.cuda.synchronize()

        def run() -> None:
            with torch.cuda.stream(self._stream):
                self._plan.run(self._ring, 1)
                self._ring.synchronize()

        self._thread.submit(run)
        return "started"

    def finish(self) -> str:
        try:
            self._thread.finish()
        except RingError as error:
            return type(error).__name__
        return hashlib.sha256(self._plan.out.cpu().numpy().tobytes()).hexdigest()

    def sum(self, elements: str) -> str:
        self.start(elements)
        return self.finish()

    def abort(self) -> str:
        self._ring.abort()
        return "aborted"

    def close(self) -> str:
        self._thread.close()
        self._ring.close()
        return "closed"


def vector(rank: int, elements: int) -> torch.Tensor:
    """The vector of an EST, whose sum depends on the order of additions."""
    return torch.randn(elements, generator=torch.Generator().manual_seed(rank))


def main() -> None:
    """Entry point."""
    # NCCL refuses two ranks on one GPU of a host, so each process poses as a host of its own.
    os.environ |= {"NCCL_HOSTID": str(os.getpid()), "NCCL_SOCKET_IFNAME": "lo"}
    member = Member(sys.argv[1])
    for line in sys.stdin:
        command, *arguments = line.split()
        print(f"> {getattr(member, command)(*arguments)}", flush=True)


if __name__ == "__main__":
    main()

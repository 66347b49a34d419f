"""NCCL groups for rings of workers that train on GPUs: construction and abort.

NCCL's messages are kernels in a stream. Differences from gloo that follow from this:

- `work.wait()` only makes a stream wait. The state of a message is unknown until the stream is synchronized.
- A kernel whose peer died or was aborted ends, if at all, as if its message had arrived. Received data counts
  only if the ring has not ended by then (`Transfer.wait`, `StepCollectives.finish`).
- torch watches its groups and, by default, ends the process when a peer fails (`_VARIABLES`).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from elastane.collective.rendezvous import MemberStore, listen

#: How long `abort` waits for NCCL: ncclCommAbort may hang in a driver or a network that does not answer.
ABORT_SECONDS: Final = 5.0
#: How long `abort` waits for a thread that is starting messages: NCCL frees what that thread is using.
_POST_SECONDS: Final = 0.1
#: Key in the rendezvous store under which the members find torch's store.
_STORE_KEY: Final = "nccl/store"
#: Read by torch when a group is built. Whether a ring has ended is decided by the master and by this worker's
#: transport; torch's watchdog would end the process, or silently end this group's kernels.
_VARIABLES: Final = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    "TORCH_NCCL_PROPAGATE_ERROR": "0",
}


class NcclGroup:
    """One generation's NCCL group on `device`. Messages are started by one thread at a time.

    All messages of a group are executed in the order in which they were started, except those of one
    `exchange`. So all members must start theirs in compatible orders.
    """

    def __init__(self, group: Any, device: torch.device) -> None:
        self._group = group
        self._device = device
        self._posting = threading.Lock()

    def exchange(self, sends: list[tuple[Tensor, int]], receives: list[tuple[Tensor, int]]) -> dist.Work:
        """Start messages, (tensor, peer) each, that do not wait for one another.

        They follow the work that the current stream of the device has queued. Raises RuntimeError.
        """
        with self._posting:
            # Coalesced even for a single message: otherwise the first message of each pair of members builds
            # a communicator, in a call that a dead peer would block.
            self._group._start_coalescing()
            for tensor, peer in sends:
                self._group.send([tensor], peer, 0)
            for tensor, peer in receives:
                self._group.recv([tensor], peer, 0)
            return cast(dist.Work, self._group._end_coalescing())

    def synchronize(self) -> None:
        """Wait until the messages that the current stream waits for have completed or were aborted."""
        torch.cuda.current_stream(self._device).synchronize()

    def abort(self) -> None:
        """End all messages, here and at the peers; may be called from any thread, any number of times."""
        posted = self._posting.acquire(timeout=_POST_SECONDS)
        try:
            _finish_within(ABORT_SECONDS, self._group.abort)
        finally:
            if posted:
                self._posting.release()


def nccl_group(
    store: MemberStore, host: str, rank: int, size: int, timeout: timedelta, device: torch.device
) -> NcclGroup:
    """Build a group of all members that meet at `store`, whose host is `host`, and connect them.

    Blocks until all are connected: a member that died meanwhile may block it for ever. Raises RuntimeError or
    OSError.
    """
    os.environ.update(_VARIABLES)
    nccl = cast(Any, dist).ProcessGroupNCCL
    options = nccl.Options()
    options._timeout = timeout
    group = nccl(_torch_store(store, host, rank, timeout), rank, size, options)
    # Otherwise the first message would connect them, and block where it cannot be ended.
    group.eager_connect_single_device(device)
    return NcclGroup(group, device)


def _torch_store(store: MemberStore, host: str, rank: int, timeout: timedelta) -> Store:
    """Return a store of torch's, whose port and random prefix only the members learn.

    The group's threads use it later too, from C++.
    """
    if rank == 0:
        listener = listen(host)
        port, prefix = listener.getsockname()[1], os.urandom(16).hex()
        # TCPStore takes over the descriptor and closes it when the group is dropped.
        descriptor = listener.detach()
        torch_store = TCPStore(
            host,
            port,
            is_master=True,
            master_listen_fd=descriptor,
            wait_for_workers=False,
            timeout=timeout,
        )
        store.set(_STORE_KEY, f"{port} {prefix}")
    else:
        word, prefix = store.get(_STORE_KEY).decode().split(" ")
        torch_store = TCPStore(host, int(word), is_master=False, wait_for_workers=False, timeout=timeout)
    return PrefixStore(prefix, torch_store)


def _finish_within(seconds: float, call: Callable[[], object]) -> None:
    """Call `call` in a thread, which is abandoned if it takes longer."""
    thread = threading.Thread(target=call, name="elastane-nccl-abort", daemon=True)
    thread.start()
    thread.join(seconds)

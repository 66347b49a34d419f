"""Batches in page-locked memory, for loaders with pin_memory on a machine with an accelerator.

As in stock the copy is made in parallel to training, in a thread of the trainer; never in a data worker,
which is a fork and must not touch the device.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from torch._utils import ExceptionWrapper
from torch.utils.data._utils.pin_memory import pin_memory

from elastane.data.transfer import Message


class PinnedMessage:
    """A message being loaded and pinned; takes the place of a `Message` in the queue."""

    def __init__(self, message: Message, future: Future[Any]) -> None:
        self._message = message
        self._future = future

    def load(self) -> Any:
        """Return the pinned batch, as `Message.load` does. Waits until it is pinned."""
        return self._future.result()

    def close(self) -> None:
        """Drop the message; pinning that has begun runs to its end."""
        if self._future.cancel():
            self._message.close()


class Pinner:
    """A thread that pins batches, on the current device of the thread that creates the Pinner."""

    def __init__(self) -> None:
        accelerator = torch.accelerator.current_accelerator()
        assert accelerator is not None, "pinning needs an accelerator"
        self._kind = accelerator.type
        self._index = torch.accelerator.current_device_index()
        self._executor = ThreadPoolExecutor(1, "elastane-pin", initializer=self._bind_thread)

    def pin(self, batch: Any) -> Any:
        """Pin in the calling thread."""
        return pin_memory(batch, self._kind)

    def take_over(self, message: Message) -> PinnedMessage:
        """Load and pin in the background, in the order of the calls."""
        return PinnedMessage(message, self._executor.submit(self._load, message))

    def close(self) -> None:
        self._executor.shutdown(cancel_futures=True)

    def _bind_thread(self) -> None:
        torch.accelerator.set_device_index(self._index)

    def _load(self, message: Message) -> Any:
        batch, states = message.load()
        if not isinstance(batch, ExceptionWrapper):
            batch = self.pin(batch)
        return batch, states

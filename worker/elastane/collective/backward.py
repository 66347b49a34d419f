"""The reducer's state of the current mini-batch, and the report of the step's last backward."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from elastane.collective.gradient_digest import GradientDigest


class BackwardReport(Protocol):
    """Reports one step. Given to the reducer with the worker's last mini-batch of the step."""

    def first_gradient(self) -> bool:
        """Called at the first gradient of the backward.

        Returns True if the step has been reported, but may not be applied by any worker before
        `last_gradient` has confirmed it: the last bucket waits for that.
        """

    def last_gradient(self) -> str:
        """Called when all gradients are in, before the sums are awaited.

        Returns why no worker may apply the step; empty if the report stands.
        """


@dataclass(slots=True)
class Backward:
    """One backward of one EST."""

    slot: int
    #: The EST's last mini-batch of the step: its gradients are used.
    sync: bool
    #: Also the worker's last EST: backward ends with the averages in p.grad.
    last: bool
    record_order: bool
    #: Flags of parameters whose gradients have arrived in this backward; number of missing ones by bucket.
    arrived: bytearray
    missing: list[int]
    #: By bucket: in-place additions to the sums' memory (the script's p.grad), and gradients taken from it.
    added: list[int]
    in_place: list[int]
    #: By bucket that is copied at once: the gradients that have arrived, with their versions at that time.
    waiting: list[list[tuple[int, Tensor, int]]]
    #: Bucket of each parameter whose gradient may wait; None: taken by itself.
    waits_in: list[int | None]
    #: Number of buckets given to the ring's thread, in order.
    started: int = 0
    callback_queued: bool = False
    #: The backward's first gradient has arrived. held: the last bucket waits for the end of the backward.
    begun: bool = False
    held: bool = False
    complete: bool = False
    #: The EST is another worker's: its gradients are digested and not summed.
    guest: bool = False
    #: Receives every bucket as the EST contributes it to the sums; None: no digest wanted.
    digest: GradientDigest | None = None
    #: In the worker's last mini-batch of the step: reports it.
    report: BackwardReport | None = None
    #: In a mini-batch that is not the EST's last of the step: every p.grad after backward, with its version.
    left: list[tuple[Tensor | None, int]] = field(default_factory=list)

"""What the reducer knows of the mini-batch that is running."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from elastane.collective.gradient_digest import GradientDigest


@dataclass(slots=True)
class Turn:
    """One backward of one EST."""

    slot: int
    #: The EST's last mini-batch of the step: its gradients are taken.
    sync: bool
    #: And the EST is the worker's last one: its backward ends with the averages in p.grad.
    last: bool
    record_order: bool
    #: Which parameters' gradients have arrived in this backward, and how many of each bucket are not in.
    arrived: bytearray
    missing: list[int]
    #: By bucket: in-place additions to the sums' memory, p.grad for the script, and gradients taken from it.
    added: list[int]
    in_place: list[int]
    #: By bucket that is filled at once: the gradients that are in, with their versions when they came.
    waiting: list[list[tuple[int, Tensor, int]]]
    #: Buckets handed to the ring's thread, in order.
    started: int = 0
    callback_queued: bool = False
    #: The backward's first gradient is in. held: the last bucket waits for the end of the backward.
    begun: bool = False
    held: bool = False
    complete: bool = False
    #: The EST is another worker's: its gradients are looked at and go nowhere.
    guest: bool = False
    #: Gets every bucket as the EST puts it into the sums; None: nobody asks.
    digest: GradientDigest | None = None
    #: Of a mini-batch that is not the EST's last of the step: every p.grad as backward left it, and its
    #: version.
    left: list[tuple[Tensor | None, int]] = field(default_factory=list)

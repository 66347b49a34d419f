"""A stage held by a member, whether it computes it or not: buffers, parameters, gradients and sums."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from elastane.collective.buckets import Bucket
from elastane.pipeline.est_buffers import EstBuffers
from elastane.pipeline.gradient_memory import GradientMemory, groups_of
from elastane.pipeline.links import Links
from elastane.pipeline.stage_sums import Holders, StageSums


class HeldStage:
    """A held stage; built for each generation.

    stage: its index. modules: of its units. places: index of each trainable parameter of the model, by id.
    holders: the members that hold the stage. `memory` and `sums` exist after `allocate`, because they depend
    on the bucket layout.
    """

    def __init__(
        self, stage: int, modules: Mapping[int, nn.Module], places: Mapping[int, int], holders: Holders
    ) -> None:
        self.stage, self.modules, self.holders = stage, dict(modules), holders
        self.buffers = EstBuffers(self.modules)
        found = {
            places[id(parameter)]: parameter
            for module in self.modules.values()
            for parameter in module.parameters()
            if id(parameter) in places
        }
        #: The stage's trainable parameters, by index among the model's.
        self.trainable: dict[int, nn.Parameter] = dict(sorted(found.items()))
        self._memory: GradientMemory | None = None
        self._sums: StageSums | None = None

    @property
    def memory(self) -> GradientMemory:
        assert self._memory is not None, "allocate comes first"
        return self._memory

    @property
    def sums(self) -> StageSums:
        assert self._sums is not None, "allocate comes first"
        return self._sums

    @property
    def gradient_bytes(self) -> int:
        """Size of the ESTs' gradients and of the sums, in bytes."""
        return 0 if self._memory is None else self._memory.nbytes

    def release(self) -> None:
        """Free the gradients' memory."""
        self._memory = self._sums = None

    def allocate(
        self, layout: Sequence[Bucket], ests: Sequence[int], me: int, links: Links, device: torch.device
    ) -> None:
        """Allocate the gradients' memory. layout: the job's buckets. ests: those computed here."""
        groups = groups_of(layout, frozenset(self.trainable), self.holders.num_ests)
        self._memory = GradientMemory(groups, ests, device)
        self._sums = StageSums(self.holders, me, self._memory, links)

    def begin_step(self) -> None:
        """Begin a step: no EST has run yet."""
        self.buffers.begin_step()
        self._forget_gradients()

    def show_averages(self) -> None:
        """Set p.grad of the trainable parameters to the averages."""
        for index, parameter in self.trainable.items():
            parameter.grad = self.memory.averages[index]

    def end_step(self, applied: bool) -> None:
        """Adopt EST 0's buffers or, without `applied`, restore those from the start of the step."""
        if applied:
            self.buffers.adopt(self.buffers.of(0))
        else:
            self.buffers.restore()

    def drop(self) -> None:
        """Discard the step in flight."""
        self.buffers.restore()
        self._forget_gradients()

    def _forget_gradients(self) -> None:
        for parameter in self.trainable.values():
            parameter.grad = None

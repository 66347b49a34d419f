"""Detects changes of a model since `prepare_ps` that parameter servers would not notice.

Weights are compared by sums of their bits, which take much less time than pulling the weights. Values that
only swap places within one tensor are not detected.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from elastane.tables.spec import PsModelError

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class ModelGuard:
    """Watches one model. net: embeddings are already remote. dense: parameters held by servers, by name."""

    def __init__(self, net: nn.Module, dense: Mapping[str, nn.Parameter]) -> None:
        self._net, self._dense = net, dict(dense)
        #: Referenced so that no new parameter can get the id of a deleted one.
        self._known = {id(parameter): parameter for parameter in [*net.parameters(), *dense.values()]}
        self._layouts = {name: _layout(parameter) for name, parameter in dense.items()}
        #: By name, a parameter's address and its bits there; the view keeps the address from being used anew.
        self._bits: dict[str, tuple[int, Tensor]] = {}
        self.pulled()

    def pulled(self) -> None:
        """Record the current parameters, after a pull has written them or where the script may write."""
        self._sums = self._sums_of_bits()

    def check(self) -> None:
        """Check the model; called before each pull and push. Raises PsModelError."""
        for name, parameter in self._net.named_parameters():
            if id(parameter) not in self._known and (parameter.requires_grad or name in self._dense):
                raise PsModelError(
                    f"{name!r} is another parameter since prepare_ps: no parameter server has it",
                    hint="change the model before prepare_ps",
                    tensor=name,
                )
        for name, parameter in self._dense.items():
            if _layout(parameter) != self._layouts[name]:
                raise PsModelError(
                    f"{name!r} has another shape, memory format or dtype since prepare_ps",
                    hint="convert the model before prepare_ps",
                    tensor=name,
                )
        for name, before, now in zip(self._dense, self._sums, self._sums_of_bits(), strict=True):
            if before != now:
                raise PsModelError(
                    f"the script has changed {name!r} since it was pulled: no parameter server hears of that",
                    hint="change weights before prepare_ps; what is written in job.evaluate is thrown away",
                    tensor=name,
                )

    def _sums_of_bits(self) -> list[int]:
        sums = [self._bits_of(*named).sum(dtype=torch.int64) for named in self._dense.items()]
        return [int(one) for one in sums]

    def _bits_of(self, name: str, parameter: nn.Parameter) -> Tensor:
        address, bits = self._bits.get(name, (0, None))
        if bits is None or parameter.data_ptr() != address or parameter.numel() != bits.numel():
            memory = torch.as_strided(parameter.detach(), (parameter.numel(),), (1,))
            bits = memory.view(_BITS[memory.element_size()])
            self._bits[name] = parameter.data_ptr(), bits
        return bits


def _layout(parameter: nn.Parameter) -> tuple[torch.Size, tuple[int, ...], torch.dtype]:
    return parameter.shape, parameter.stride(), parameter.dtype

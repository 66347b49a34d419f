"""Changes of a model since `prepare_ps` that parameter servers would not hear of."""

from __future__ import annotations

from collections.abc import Mapping

import structlog
import torch
from torch import nn

from elastane.tables.spec import PsModelError

_log = structlog.get_logger(__name__)


class ModelGuard:
    """net: with remote embeddings already. dense: the parameters that parameter servers have, by name."""

    def __init__(self, net: nn.Module, dense: Mapping[str, nn.Parameter]) -> None:
        self._net, self._dense = net, dict(dense)
        #: Held, so that no new parameter gets the id of one that is gone.
        self._known = {id(parameter): parameter for parameter in [*net.parameters(), *dense.values()]}
        self._layouts = {name: _layout(parameter) for name, parameter in dense.items()}
        self._said_written = False
        self.pulled()

    def pulled(self) -> None:
        """The parameters have just been written by a pull."""
        self._versions = {name: parameter._version for name, parameter in self._dense.items()}

    def check(self) -> None:
        """Look at the model before the next pull. Raises PsModelError."""
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
            if parameter._version != self._versions[name] and not self._said_written:
                self._said_written = True
                _log.warning(
                    "a weight that the script has changed since it was pulled is pulled again, and the change"
                    " is lost: change weights before prepare_ps",
                    name=name,
                )


def _layout(parameter: nn.Parameter) -> tuple[torch.Size, tuple[int, ...], torch.dtype]:
    return parameter.shape, parameter.stride(), parameter.dtype

"""The generator that a script passes to its DataLoader (`generator=`), with a separate state for every EST.

A stock rank draws base_seed from it at the start of each epoch, and the script may draw from it too. Each EST
continues from its own state, which is a reserved item of the EST's context. A generator that the script also
registered, or torch's global one, is part of the context already.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch.utils.data import DataLoader

from elastane.registry import Registry, from_bytes, to_bytes

GENERATOR: Final = "item/@generator"
_NAME: Final = "@generator"
_KIND: Final = "torch Generator"


class LoaderGenerator:
    """Switches the loader's generator between ESTs. Does nothing for a loader without one."""

    def __init__(self, loader: DataLoader[Any], registry: Registry) -> None:
        given = loader.generator
        kept = given is None or given is torch.default_generator or registry.holds(given)
        self.given: torch.Generator | None = given
        self._switched: torch.Generator | None = None if kept else given
        #: State at prepare, from which every EST starts.
        self.initial = self.state()

    def draw_base_seed(self) -> int:
        """Draw base_seed as stock's iterator does at the start of an epoch, with or without data workers."""
        return int(torch.empty((), dtype=torch.int64).random_(generator=self.given).item())

    def state(self) -> bytes | None:
        """Return the state to keep, or None if there is none."""
        if self._switched is None:
            return None
        return to_bytes(_NAME, _KIND, self._switched.get_state())

    def restore(self, state: bytes | None) -> None:
        """Inverse of `state`."""
        if self._switched is not None and state is not None:
            self._switched.set_state(from_bytes(_NAME, state)[1])

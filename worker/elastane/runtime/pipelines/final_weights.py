"""The trained model's weights, kept in the leader for the code after the loop over epochs.

By then the other workers may be gone, and whether the code needs the weights cannot be known earlier. They
are kept in files in TMPDIR, because the model may be larger than memory.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from torch import Tensor


class FinalWeights:
    """Weights by unit in a folder of temporary files, which is removed at process exit."""

    def __init__(self) -> None:
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._files: list[Path] = []
        #: True once all units have been stored.
        self.is_whole = False
        #: Why the weights are missing, if they should be here.
        self.failure = ""

    def begin(self, *, wanted: bool) -> None:
        """Start over. wanted: True if this process keeps the weights."""
        if self._folder is not None:
            self._folder.cleanup()  # tensors read from the old files stay valid
        self._folder, self._files, self.failure, self.is_whole = None, [], "", False
        if not wanted:
            return
        try:
            self._folder = tempfile.TemporaryDirectory(prefix="elastane-weights-")
        except OSError as error:
            self.failure = str(error)

    def take(self, weights: dict[str, Tensor]) -> None:
        """Store the next unit's weights. A full disk does not stop the training: see `failure`."""
        if self._folder is None or self.failure:
            return
        path = Path(self._folder.name) / f"unit-{len(self._files)}.pt"
        try:
            torch.save(weights, path)
        except (OSError, RuntimeError) as error:
            self.failure = str(error)
            return
        self._files.append(path)

    def end(self) -> None:
        """Record that all units have been received."""
        self.is_whole = self._folder is not None and not self.failure

    def lose(self, why: str) -> None:
        """Record that not all of them could be received."""
        self.begin(wanted=False)
        self.failure = why

    def forget(self) -> None:
        """Discard the weights, because training continues."""
        self.begin(wanted=False)

    def read(self) -> dict[str, Tensor]:
        """Return the weights of all units; they use memory only as tensors are read."""
        found: dict[str, Tensor] = {}
        for path in self._files:
            found |= torch.load(path, mmap=True, weights_only=True)
        return found

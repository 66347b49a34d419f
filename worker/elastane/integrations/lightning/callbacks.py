"""State of Lightning's callbacks as part of the job's state, and the files that they write."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

from elastane_common.atomic_writes import atomic_file


class CallbackStates:
    """State of all callbacks and the values that they may monitor, in the form that `job.prepare` accepts.

    A joining worker receives it with the weights.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._metrics: dict[str, torch.Tensor] = {}

    def validated(self, names: Iterable[str]) -> None:
        """Record the values logged by a validation."""
        found = self._trainer.callback_metrics
        self._metrics = self._metrics | {name: found[name] for name in names if name in found}

    def state_dict(self) -> dict[str, Any]:
        kept = {one.state_key: one.state_dict() for one in self._trainer.callbacks}
        return {"callbacks": {key: state for key, state in kept.items() if state}, "metrics": self._metrics}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for callback in self._trainer.callbacks:
            kept = state["callbacks"].get(callback.state_key)
            if kept is not None:
                callback.load_state_dict(kept)
                if isinstance(callback, ModelCheckpoint):
                    vars(callback).update(kept)  # load_state_dict restores only a part
        self._metrics = dict(state["metrics"])
        self._trainer._logger_connector._callback_metrics.update(self._metrics)


def same_in_every_worker(trainer: Trainer, job: str) -> None:
    """Make the names of checkpoint files independent of which worker chooses them, and when.

    They go to `default_root_dir/checkpoints/JOB` by default, because the folder of a logger's version differs
    between workers. Files left by another run are overwritten.
    """
    for callback in trainer.callbacks:
        if isinstance(callback, ModelCheckpoint):
            if callback.dirpath is None:
                callback.dirpath = str(Path(trainer.default_root_dir) / "checkpoints" / job)
            callback.file_exists = _is_own(callback)


def _is_own(callback: ModelCheckpoint) -> Any:
    return lambda filepath, trainer: str(filepath) in callback.best_k_models


class WholeFiles(TorchCheckpointIO):
    """Writes checkpoints atomically, because a worker may be killed while it writes."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        if "://" in str(path):
            super().save_checkpoint(checkpoint, path, storage_options)
            return
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(target, durable=True) as file:
            torch.save(checkpoint, file)

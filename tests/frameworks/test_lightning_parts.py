"""What the Strategy refuses, and its parts, in one process."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import lightning as L  # noqa: N812 - as Lightning's own pages do
import pytest
import torch
from lightning.pytorch import callbacks
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, WeightedRandomSampler
from torchmetrics import MeanMetric, MetricCollection

from elastane.integrations.lightning import ElastaneStrategy
from elastane.integrations.lightning.callbacks import CallbackStates, WholeFiles
from elastane.integrations.lightning.metrics import reduced
from elastane.integrations.lightning.refusals import LightningError
from elastane.runtime.environment import WorkerEnvironment
from elastane.runtime.stock import PlainJob

DATA = TensorDataset(torch.arange(12.0).reshape(12, 1))


class Line(L.LightningModule):
    """Fits one weight. training, validating: further statements of the two hooks."""

    def __init__(self, training: Callable[[Any], Any] | None = None, validating: Any = None) -> None:
        super().__init__()
        self.net, self.average = nn.Linear(1, 1), MeanMetric()
        self.training_part, self.validating_part = training, validating
        self.seen: list[tuple[int, list[float]]] = []

    def training_step(self, batch, batch_idx):
        if self.training_part is not None:
            self.training_part(self)
        return self.net(batch[0]).square().mean()

    def validation_step(self, batch, batch_idx):
        self.seen.append((batch_idx, batch[0].flatten().tolist()))
        self.average(batch[0].mean())
        self.log("average", self.average)
        self.log("val", batch[0].mean(), sync_dist=True)
        self.log("own", batch[0].mean())
        if self.validating_part is not None:
            self.validating_part(self)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 1e-4)


class Manual(Line):
    automatic_optimization = False


class Closures(Line):
    def configure_optimizers(self):
        return torch.optim.LBFGS(self.parameters())


class Skips(Line):
    def on_train_batch_start(self, batch, batch_idx):
        return -1


class Draws(Line):
    def on_train_epoch_start(self):
        torch.rand(1)


class Normed(Line):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(1)


class Collected(Line):
    def __init__(self) -> None:
        super().__init__()
        self.all = MetricCollection([MeanMetric()])


class Stream(IterableDataset):
    def __iter__(self):
        return iter(DATA)


def fit(
    module: Line, folder: Path, *, loader: Any = None, validation: Any = None, ranks: int = 3, **options: Any
) -> L.Trainer:
    """Train as rank 0 of three, in this process."""
    job = PlainJob(WorkerEnvironment(mode="plain", job="mine"), None)
    job.num_ests = ranks
    options = {"max_epochs": 1, "logger": False, "enable_checkpointing": False, **options}
    trainer = L.Trainer(
        strategy=ElastaneStrategy(job), accelerator="cpu", default_root_dir=folder,
        enable_progress_bar=False, enable_model_summary=False, **options,
    )  # fmt: skip
    validation = DataLoader(DATA, 2) if validation is None else validation
    trainer.fit(module, DataLoader(DATA, 2) if loader is None else loader, validation)
    return trainer


def checkpointing(**options: Any) -> dict[str, Any]:
    return {"callbacks": [callbacks.ModelCheckpoint(**options)], "enable_checkpointing": True}


REFUSED: dict[str, tuple[Line, dict[str, Any]]] = {
    "manual optimization": (Manual(), {}),
    "LBFGS": (Closures(), {}),
    "on_train_batch_start": (Skips(), {}),
    "precision='16-true'": (Line(), {"precision": "16-true"}),
    "limit_train_batches=1": (Line(), {"limit_train_batches": 1}),
    "overfit_batches": (Line(), {"overfit_batches": 1}),
    "reload_dataloaders_every_n_epochs": (Line(), {"reload_dataloaders_every_n_epochs": 1}),
    "val_check_interval=1": (Line(), {"val_check_interval": 1}),
    "use_distributed_sampler": (Line(), {"use_distributed_sampler": False}),
    "sync_batchnorm": (Line(), {"sync_batchnorm": True}),
    "max_epochs=-1": (Line(), {"max_epochs": -1}),
    "Timer": (Line(), {"max_time": "00:01:00:00"}),
    "EMAWeightAveraging": (Line(), {"callbacks": [callbacks.EMAWeightAveraging()]}),
    "train_time_interval": (Line(), checkpointing(train_time_interval=timedelta(seconds=1))),
    "module with buffers": (Normed(), checkpointing(every_n_train_steps=1)),
    "on_train_epoch_start": (Draws(), {}),
    "MetricCollection": (Collected(), {}),
    "train_dataloader gives a Stream": (Line(), {"loader": DataLoader(Stream(), 2)}),
    "train_dataloader gives a list": (Line(), {"loader": [DataLoader(DATA)] * 2}),
    "WeightedRandomSampler": (
        Line(),
        {"loader": DataLoader(DATA, sampler=WeightedRandomSampler([1.0] * 12, 12))},
    ),
    "2 loaders of validation": (Line(), {"validation": [DataLoader(DATA)] * 2}),
    "sync_dist=True": (Line(lambda module: module.log("a", 1.0, sync_dist=True)), {}),
    "torchmetric average": (Line(lambda module: module.average(1.0)), {"num_sanity_val_steps": 0}),
    "all_gather": (Line(lambda module: module.all_gather(torch.ones(1))), {}),
    "'a' is monitored": (
        Line(lambda module: module.log("a", 1.0)),
        {"callbacks": [callbacks.EarlyStopping("a")]},
    ),
    "'own' is monitored": (Line(), {"callbacks": [callbacks.EarlyStopping("own")]}),
    "validation draws": (Line(validating=lambda module: torch.rand(1)), {"num_sanity_val_steps": 0}),
    "middle of an epoch": (Line(lambda module: setattr(module.trainer, "should_stop", True)), {}),
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_cannot_be_exact_is_refused_by_name(words: str, tmp_path: Path) -> None:
    module, options = REFUSED[words]
    with pytest.raises(LightningError, match=words) as refused:
        fit(module, tmp_path, **options)
    assert refused.value.hint


def test_a_checkpoint_of_lightning_is_not_gone_on_from(tmp_path: Path) -> None:
    trainer = fit(Line(), tmp_path)
    trainer.save_checkpoint(tmp_path / "one.ckpt")
    with pytest.raises(LightningError, match="ckpt_path"):
        L.Trainer(
            strategy=ElastaneStrategy(PlainJob(WorkerEnvironment(mode="plain"), None)), max_epochs=2,
            accelerator="cpu", default_root_dir=tmp_path, logger=False, enable_checkpointing=False,
        ).fit(Line(), DataLoader(DATA, 2), ckpt_path=tmp_path / "one.ckpt")  # fmt: skip


def test_a_second_fit_is_refused(tmp_path: Path) -> None:
    trainer = fit(Line(), tmp_path)
    with pytest.raises(LightningError, match="second fit"):
        trainer.fit(Line(), DataLoader(DATA, 2))


def test_every_worker_validates_for_all_ranks_in_their_order(tmp_path: Path) -> None:
    module = Line()
    trainer = fit(module, tmp_path, num_sanity_val_steps=0)
    shares = {0: [[0.0, 3.0], [6.0, 9.0]], 1: [[1.0, 4.0], [7.0, 10.0]], 2: [[2.0, 5.0], [8.0, 11.0]]}
    assert module.seen == [found for share in shares.values() for found in enumerate(share)]
    found = trainer.callback_metrics
    assert found["val"] == found["average"] == 5.5
    assert found["own"] == 4.5  # rank 0's


def test_the_sanity_check_is_that_of_rank_0(tmp_path: Path) -> None:
    module = Line()
    fit(module, tmp_path, num_sanity_val_steps=1, limit_val_batches=1)
    assert module.seen == [(0, batch) for batch in ([0.0, 3.0], [0.0, 3.0], [1.0, 4.0], [2.0, 5.0])]


def test_numbers_of_ranks_are_added_as_gloo_adds_them() -> None:
    values = [torch.tensor(value) for value in (1.0, -1e8, 1e8)]
    assert reduced(values, "sum") == 1  # from the last rank down; from the first up it would be 0
    assert reduced([torch.tensor(2), torch.tensor(3)], "mean") == 2  # as sizes of batches are
    assert reduced(values, "max") == 1e8
    assert reduced(values, "min") == -1e8


def test_a_worker_that_joins_has_what_callbacks_keep(tmp_path: Path) -> None:
    def trainer() -> L.Trainer:
        both = [callbacks.EarlyStopping("val"), callbacks.ModelCheckpoint(tmp_path, monitor="val")]
        return L.Trainer(callbacks=both, logger=False, accelerator="cpu")

    old, new = trainer(), trainer()
    stopping, checkpoint = old.early_stopping_callback, old.checkpoint_callback
    stopping.wait_count, stopping.best_score = 2, torch.tensor(0.25)
    checkpoint.current_score = checkpoint.best_model_score = torch.tensor(0.5)
    checkpoint.best_k_models = {"a.ckpt": torch.tensor(0.5)}
    states = CallbackStates(new)
    states.load_state_dict(CallbackStates(old).state_dict())
    assert new.early_stopping_callback.wait_count == 2
    assert states.state_dict() == CallbackStates(old).state_dict()


def test_a_checkpoint_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, path = WholeFiles(), tmp_path / "folder" / "one.ckpt"
    files.save_checkpoint({"a": 1}, path)

    def dies(checkpoint: Any, file: Any) -> None:
        file.write(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(torch, "save", dies)
    with pytest.raises(KeyboardInterrupt):
        files.save_checkpoint({"a": 2}, path)
    assert [one.name for one in path.parent.iterdir()] == ["one.ckpt"]
    assert torch.load(path) == {"a": 1}

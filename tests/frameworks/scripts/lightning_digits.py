"""An image classifier of Lightning, for `torchrun --nproc-per-node 3`; rank 0 writes what it has trained.

Beside what a classifier has: augmentation, dropout and BatchNorm, whose bits depend on each rank's generators
and on rank 0's buffers; a schedule of each kind; decisions by validation.
"""

import argparse
import hashlib
import json
import random
from pathlib import Path

import lightning as L  # noqa: N812 - as Lightning's own pages do
import torch
from lightning.pytorch.callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.strategies import DDPStrategy
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchmetrics.classification import MulticlassAccuracy

parser = argparse.ArgumentParser()
parser.add_argument("--schedule", default="step")
parser.add_argument("--patience", type=int, default=0)
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--steps", type=int, default=-1)
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--clip", type=float)
args = parser.parse_args()


class Digits(Dataset):
    def __init__(self, train: bool) -> None:
        images, labels = load_digits(return_X_y=True)
        part = slice(0, 500) if train else slice(1600, None)
        self.images = torch.tensor(images[part], dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
        self.labels, self.train = torch.tensor(labels[part]), train

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        image = self.images[index]
        if self.train:
            image = torch.roll(image, random.randint(-1, 1), dims=1) + 0.05 * torch.randn_like(image)
        return image, self.labels[index]


class Classifier(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.save_hyperparameters({"width": 8})
        self.net = nn.Sequential(
            nn.Conv2d(1, 8, 3),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Flatten(),
            nn.Dropout(0.2),
            nn.Linear(288, 10),
        )
        self.accuracy = MulticlassAccuracy(10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.net(images)

    def training_step(self, batch, batch_idx):
        loss = nn.functional.cross_entropy(self(batch[0]), batch[1])
        self.log("train_loss", loss, on_step=True, on_epoch=True, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        logits = self(batch[0])
        self.accuracy(logits, batch[1])
        self.log("val_loss", nn.functional.cross_entropy(logits, batch[1]), sync_dist=True)
        self.log("val_accuracy", self.accuracy)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=3e-3)
        if args.schedule == "plateau":
            schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=0.5)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "monitor": "val_loss"}}
        if args.schedule == "epoch":
            return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)]
        steps = self.trainer.estimated_stepping_batches
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=int(steps))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Seen(L.Callback):
    """What callbacks see on rank 0."""

    def __init__(self) -> None:
        self.epochs: list = []
        self.batches: list = []

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx) -> None:
        self.batches.append([trainer.current_epoch, batch_idx, trainer.global_step, outputs["loss"].item()])

    def on_train_epoch_end(self, trainer, module) -> None:
        found = {name: value.item().hex() for name, value in sorted(trainer.callback_metrics.items())}
        self.epochs.append([trainer.current_epoch, trainer.global_step, found])


def digest(value) -> str:
    sha = hashlib.sha256()

    def add(part) -> None:
        if isinstance(part, torch.Tensor):
            sha.update(part.detach().contiguous().numpy().tobytes())
        elif isinstance(part, dict):
            for key in sorted(part, key=str):
                sha.update(str(key).encode())
                add(part[key])
        elif isinstance(part, list | tuple):
            for one in part:
                add(one)
        else:
            sha.update(repr(part).encode())

    add(value)
    return sha.hexdigest()


def main() -> None:
    torch.set_num_threads(1)
    L.seed_everything(7)
    model, seen = Classifier(), Seen()
    checkpoint = ModelCheckpoint("checkpoints", monitor="val_loss", save_top_k=1, filename="best-{epoch}")
    callbacks = [checkpoint, seen, LearningRateMonitor("step")]
    if args.patience:
        callbacks.append(EarlyStopping("val_loss", patience=args.patience, min_delta=0.5))
    strategy = DDPStrategy(process_group_backend="gloo")
    trainer = L.Trainer(
        max_epochs=args.epochs, max_steps=args.steps, accumulate_grad_batches=args.accumulate,
        gradient_clip_val=args.clip, callbacks=callbacks, logger=CSVLogger("logs"), log_every_n_steps=1,
        accelerator="cpu", devices=3, strategy=strategy,
    )  # fmt: skip
    trainer.fit(model, DataLoader(Digits(True), 16, shuffle=True), DataLoader(Digits(False), 16))
    if trainer.is_global_zero:
        optimizer = trainer.optimizers[0].state_dict()
        saved = torch.load(checkpoint.best_model_path, weights_only=False)
        report = {
            "weights": digest(model.state_dict()),
            "optimizer": digest(optimizer["state"]),
            "rates": [group["lr"] for group in optimizer["param_groups"]],
            "epochs": seen.epochs,
            "batches": seen.batches,
            "best": [Path(checkpoint.best_model_path).name, float(checkpoint.best_model_score).hex()],
            "saved": [digest(saved["state_dict"]), saved["epoch"], saved["global_step"]],
        }
        Path("trained.json").write_text(json.dumps(report))


if __name__ == "__main__":
    main()

"""What digits_elastic.py and digits_ddp.py train: data, model, and how the trained model is saved."""

import os
import tempfile
import time
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

import elastane

BATCH_SIZE = 32


def digits(train: bool) -> TensorDataset:
    images, labels = load_digits(return_X_y=True)
    part = slice(0, 1536) if train else slice(1536, None)
    pixels = torch.tensor(images[part], dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
    return TensorDataset(pixels, torch.tensor(labels[part]))


def build_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Dropout(0.3), nn.Linear(32 * 16, 10),
    )  # fmt: skip


@torch.no_grad()
def accuracy(net: nn.Module) -> float:
    images, labels = digits(train=False).tensors
    net.eval()
    correct = (net(images).argmax(1) == labels).float().mean().item()
    net.train()
    return correct


def save(net: nn.Module) -> None:
    """Hand the weights to the service; every process calls it, and one uploads."""
    with tempfile.TemporaryDirectory() as folder:
        torch.save(net.state_dict(), f"{folder}/weights.pt")
        elastane.save_model(folder)


def wait_for_signal(epoch: int) -> None:
    """Before epoch HOLD_EPOCH, wait until the file HOLD_UNTIL is there: so long faults can be injected."""
    file = os.environ.get("HOLD_UNTIL")
    while file and epoch == int(os.environ["HOLD_EPOCH"]) and not Path(file).exists():
        time.sleep(0.05)

"""The form of Lightning's examples/fabric/image_classifier, for `torchrun --nproc-per-node 3`.

Beside what that has: augmentation and BatchNorm, whose bits depend on each rank's generators and on rank 0's
buffers, clipping, and a metric that decides on the training.
"""

import argparse
import random
from pathlib import Path

import torch
from lightning.fabric import Fabric
from sklearn.datasets import load_digits
from torch import nn
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--precision", default="32-true")
parser.add_argument("--clip", type=float, default=0.5)
args = parser.parse_args()


class Digits(Dataset):
    def __init__(self, train):
        images, labels = load_digits(return_X_y=True)
        part = slice(0, 400) if train else slice(1600, None)
        self.images = torch.tensor(images[part], dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
        self.labels, self.train = torch.tensor(labels[part]), train

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        image = self.images[index]
        if self.train:
            image = torch.roll(image, random.randint(-1, 1), dims=1) + 0.05 * torch.randn_like(image)
        return image, self.labels[index]


fabric = Fabric(accelerator="cpu", strategy="ddp", devices=3, precision=args.precision)
fabric.launch()
fabric.seed_everything(7)
model = nn.Sequential(
    nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Dropout(0.2), nn.Linear(288, 10)
)
optimizer = torch.optim.Adadelta(model.parameters(), lr=0.5)
scheduler = StepLR(optimizer, step_size=1, gamma=0.7)
model, optimizer, scheduler = fabric.setup(model, optimizer, scheduler=scheduler)
train_loader, test_loader = fabric.setup_dataloaders(
    DataLoader(Digits(True), batch_size=10, shuffle=True), DataLoader(Digits(False), batch_size=32)
)
for epoch in range(args.epochs):
    model.train()
    for data, target in train_loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(data), target)
        fabric.backward(loss)
        fabric.clip_gradients(model, optimizer, max_norm=args.clip)
        optimizer.step()
    scheduler.step()
    model.eval()
    right = seen = 0
    with torch.no_grad():
        for data, target in test_loader:
            right += int((model(data).argmax(1) == target).sum())
            seen += len(target)
    right, seen = (int(one) for one in fabric.all_reduce([right, seen], reduce_op="sum"))
    fabric.print(f"epoch {epoch}: {right} of {seen}")
    # The metric decides on the training, so that its bits are those of the weights.
    for group in optimizer.param_groups:
        group["weight_decay"] = 0.01 * right / seen
    fabric.save(Path("digits.pt"), {"model": model, "right": right, "seen": seen})

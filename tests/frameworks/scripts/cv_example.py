"""The form of Accelerate's examples/cv_example.py, with random images: augmented by data workers."""

import argparse

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    def __init__(self, size, augmented):
        generator = torch.Generator().manual_seed(size)
        self.images = torch.randn(size, 3, 8, 8, generator=generator)
        self.augmented = augmented

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image = self.images[index]
        if self.augmented:
            image = image + 0.1 * torch.randn(())
        return {"image": image, "label": int(image.mean() > 0)}


def training_function(args):
    accelerator = Accelerator()
    set_seed(42)
    train_dataloader = DataLoader(Images(50, True), shuffle=True, batch_size=4, num_workers=args.data_workers)
    eval_dataloader = DataLoader(Images(22, False), shuffle=False, batch_size=4)
    model = nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Dropout(0.2), nn.Linear(216, 2)
    )
    model = model.to(accelerator.device)
    optimizer = torch.optim.Adam(params=model.parameters(), lr=0.001)
    lr_scheduler = OneCycleLR(
        optimizer=optimizer, max_lr=0.01, epochs=args.epochs, steps_per_epoch=len(train_dataloader)
    )
    model, optimizer, train_dataloader, eval_dataloader, lr_scheduler = accelerator.prepare(
        model, optimizer, train_dataloader, eval_dataloader, lr_scheduler
    )
    for epoch in range(args.epochs):
        model.train()
        for batch in train_dataloader:
            loss = nn.functional.cross_entropy(model(batch["image"]), batch["label"])
            accelerator.backward(loss)
            optimizer.step()
            lr_scheduler.step()
            optimizer.zero_grad()
        model.eval()
        accurate, num_elems = 0, 0
        for batch in eval_dataloader:
            with torch.no_grad():
                outputs = model(batch["image"])
            predictions, references = accelerator.gather_for_metrics((outputs.argmax(dim=-1), batch["label"]))
            num_elems += len(references)
            accurate += (predictions == references).long().sum()
        accelerator.print(f"epoch {epoch}: {100 * accurate.item() / num_elems:.2f}")
        accelerator.save_state(f"epoch_{epoch}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--data-workers", type=int, default=2)
    training_function(parser.parse_args())

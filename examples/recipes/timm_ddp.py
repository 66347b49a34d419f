"""After timm's train script: averaged weights, mixup, random erasing, a schedule of updates, a best metric.

torchrun --nproc-per-node 4 timm_ddp.py
"""

import argparse
import copy
import math
import random

import digest
import numpy as np
import torch
import torch.distributed as dist
from synthetic import Images
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler


def random_seed(seed, rank):
    torch.manual_seed(seed + rank)
    np.random.seed(seed + rank)
    random.seed(seed + rank)


def random_erasing(image, probability=0.25):
    if random.random() < probability:
        top, left = random.randint(0, 5), random.randint(0, 5)
        image = image.clone()
        image[:, top : top + 3, left : left + 3] = torch.empty_like(image[:, :3, :3]).normal_()
    return image


class Mixup:
    """Each picture mixed with another of its batch, labels too."""

    def __init__(self, mixup_alpha, num_classes):
        self.mixup_alpha, self.num_classes = mixup_alpha, num_classes

    def __call__(self, x, target):
        lam = float(np.random.beta(self.mixup_alpha, self.mixup_alpha))
        hot = nn.functional.one_hot(target, self.num_classes).float()
        return x * lam + x.flip(0) * (1.0 - lam), hot * lam + hot.flip(0) * (1.0 - lam)


class ModelEma(nn.Module):
    def __init__(self, model, decay):
        super().__init__()
        self.module = copy.deepcopy(model).eval()
        self.decay = decay

    @torch.no_grad()
    def update(self, model):
        new = model.state_dict().values()
        for ema_v, model_v in zip(self.module.state_dict().values(), new, strict=True):
            if ema_v.is_floating_point():
                ema_v.copy_(self.decay * ema_v + (1.0 - self.decay) * model_v)
            else:
                ema_v.copy_(model_v)


class CosineLRScheduler:
    """Set by the number of updates in an epoch, and by the epoch between two."""

    def __init__(self, optimizer, t_initial, warmup_t):
        self.optimizer, self.t_initial, self.warmup_t = optimizer, t_initial, warmup_t
        self.base_values = [group["lr"] for group in optimizer.param_groups]
        self.metric = None
        self.step_update(0)

    def step(self, epoch, metric=None):
        self.metric = metric  # of the epoch that is over: a plateau schedule would use it

    def step_update(self, num_updates):
        if num_updates < self.warmup_t:
            factor = (num_updates + 1) / (self.warmup_t + 1)
        else:
            factor = 0.5 * (1.0 + math.cos(math.pi * num_updates / self.t_initial))
        for group, value in zip(self.optimizer.param_groups, self.base_values, strict=True):
            group["lr"] = value * factor

    def state_dict(self):
        return {"metric": self.metric}

    def load_state_dict(self, state_dict):
        self.metric = state_dict["metric"]


def create_model():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Flatten(), nn.Dropout(0.1), nn.Linear(128, 10),
    )  # fmt: skip


def soft_target_cross_entropy(x, target):
    return torch.sum(-target * nn.functional.log_softmax(x, dim=-1), dim=-1).mean()


def train_one_epoch(epoch, model, loader, optimizer, args, mixup_fn, lr_scheduler, model_ema):
    model.train()
    updates_per_epoch = len(loader)
    num_updates = epoch * updates_per_epoch
    for batch_idx, (input, target) in enumerate(loader):
        input, target = mixup_fn(input, target)
        output = model(input)
        loss = soft_target_cross_entropy(output, target)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), args.clip_grad)
        optimizer.step()
        num_updates += 1
        if model_ema is not None:
            model_ema.update(model)
        if batch_idx % args.log_interval == 0:
            print(f"Train: {epoch} [{batch_idx}/{updates_per_epoch}] Loss: {loss.item():.4f}")
        lr_scheduler.step_update(num_updates=num_updates)


def validate(model, loader):
    model.eval()
    figures = torch.zeros(2)
    with torch.no_grad():
        for input, target in loader:
            output = model(input)
            figures += torch.tensor([(output.argmax(1) == target).sum(), len(target)])
    dist.all_reduce(figures)
    return {"top1": 100.0 * (figures[0] / figures[1]).item()}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=5e-3)
    parser.add_argument("--warmup-updates", type=int, default=3)
    parser.add_argument("--clip-grad", type=float, default=1.0)
    parser.add_argument("--mixup", type=float, default=0.2)
    parser.add_argument("--model-ema-decay", type=float, default=0.9)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--log-interval", type=int, default=10)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    random_seed(args.seed, rank)
    model = create_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.05)
    model_ema = ModelEma(model, decay=args.model_ema_decay)
    model = DDP(model)

    dataset_train = Images(120, channels=3, transform=random_erasing)
    dataset_eval = Images(48, channels=3, seed=1)
    sampler_train = DistributedSampler(dataset_train)
    loader_train = DataLoader(dataset_train, args.batch_size, sampler=sampler_train, drop_last=True)
    loader_eval = DataLoader(dataset_eval, 16, sampler=DistributedSampler(dataset_eval, shuffle=False))
    mixup_fn = Mixup(args.mixup, num_classes=10)
    lr_scheduler = CosineLRScheduler(optimizer, len(loader_train) * args.epochs, args.warmup_updates)

    best_metric, best_epoch = None, None
    for epoch in range(args.epochs):
        sampler_train.set_epoch(epoch)
        train_one_epoch(epoch, model, loader_train, optimizer, args, mixup_fn, lr_scheduler, model_ema)
        eval_metrics = validate(model, loader_eval)
        ema_eval_metrics = validate(model_ema.module, loader_eval)
        lr_scheduler.step(epoch + 1, ema_eval_metrics["top1"])
        if rank == 0:
            print(f"epoch {epoch}: {eval_metrics}, averaged {ema_eval_metrics}")
        if best_metric is None or ema_eval_metrics["top1"] > best_metric:
            best_metric, best_epoch = ema_eval_metrics["top1"], epoch
    if rank == 0:
        print(f"*** Best metric: {best_metric} (epoch {best_epoch})")
        digest.show(model=model, optimizer=optimizer, ema=model_ema)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

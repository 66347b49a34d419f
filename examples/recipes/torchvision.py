"""After torchvision's classification reference: repeated augmentation, averaged weights, warmup, meters.

elastane run --ests 4 torchvision.py
"""

import argparse
from collections import defaultdict

import digest
import torch
from synthetic import Images
from torch import nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, Sampler

import elastane


class RASampler(Sampler):
    """Repeated augmentation: each sample comes several times, in pictures of different ranks."""

    def __init__(self, dataset, num_replicas, rank, shuffle=True, seed=0, repetitions=3):
        self.num_replicas = num_replicas
        self.rank = rank
        self.dataset, self.shuffle, self.seed, self.repetitions = dataset, shuffle, seed, repetitions
        self.epoch = 0
        self.num_selected_samples = len(dataset) // self.num_replicas

    def __iter__(self):
        g = torch.Generator()
        g.manual_seed(self.seed + self.epoch)
        order = torch.randperm(len(self.dataset), generator=g) if self.shuffle else torch.arange(len(self))
        indices = [index for index in order.tolist() for _ in range(self.repetitions)]
        return iter(indices[self.rank :: self.num_replicas][: self.num_selected_samples])

    def __len__(self):
        return self.num_selected_samples

    def set_epoch(self, epoch):
        self.epoch = epoch


class ExponentialMovingAverage(AveragedModel):
    def __init__(self, model, decay):
        def ema_avg(avg_model_param, model_param, num_averaged):
            return decay * avg_model_param + (1 - decay) * model_param

        super().__init__(model, avg_fn=ema_avg, use_buffers=True)


class MetricLogger:
    """Sums and counts of figures."""

    def __init__(self):
        self.totals = defaultdict(lambda: [0.0, 0])

    def update(self, n=1, **values):
        for name, value in values.items():
            self.totals[name][0] += value * n
            self.totals[name][1] += n

    def global_avg(self, name):
        return self.totals[name][0] / max(self.totals[name][1], 1)


def build_model():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(0.1), nn.Linear(128, 10),
    )  # fmt: skip


def set_weight_decay(model, weight_decay, norm_weight_decay):
    norms = [p for m in model.modules() if isinstance(m, nn.BatchNorm2d) for p in m.parameters(recurse=False)]
    others = [p for p in model.parameters() if all(p is not norm for norm in norms)]
    return [
        {"params": others, "weight_decay": weight_decay},
        {"params": norms, "weight_decay": norm_weight_decay},
    ]


def random_crop_and_flip(image):
    top, left = torch.randint(0, 3, (2,)).tolist()
    image = nn.functional.pad(image, (1, 1, 1, 1))[:, top : top + 8, left : left + 8]
    return image.flip(-1) if torch.rand(()) < 0.5 else image


def train_one_epoch(model, criterion, optimizer, data_loader, epoch, args, model_ema=None):
    model.train()
    metric_logger = MetricLogger()
    for image, target in data_loader:
        output = model(image)
        loss = criterion(output, target)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), args.clip_grad_norm)
        optimizer.step()
        if job.stepped and job.step % len(data_loader) % args.model_ema_steps == 0:
            model_ema.update_parameters(model)
            if epoch < args.lr_warmup_epochs:
                # Until the warmup is over the average is what the weights are.
                model_ema.n_averaged.fill_(0)
        metric_logger.update(loss=loss.item(), n=image.shape[0])
    print(f"Epoch: [{epoch}] loss {metric_logger.global_avg('loss'):.4f}")


def evaluate(model, criterion, data_loader, log_suffix=""):
    model.eval()
    metric_logger = MetricLogger()
    with torch.inference_mode():
        for image, target in data_loader:
            output = model(image)
            acc1 = (output.argmax(1) == target).float().mean().item()
            metric_logger.update(loss=criterion(output, target).item(), acc1=acc1, n=image.shape[0])
    print(f"Test: {log_suffix} Acc@1 {metric_logger.global_avg('acc1'):.3f}")
    return metric_logger.global_avg("acc1")


def save_on_master(*args):
    if job.is_leader:
        torch.save(*args)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--lr-warmup-epochs", type=int, default=1)
    parser.add_argument("--label-smoothing", type=float, default=0.1)
    parser.add_argument("--clip-grad-norm", type=float, default=1.0)
    parser.add_argument("--model-ema-steps", type=int, default=2)
    parser.add_argument("--model-ema-decay", type=float, default=0.99)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    dataset = Images(96, channels=3, transform=random_crop_and_flip)
    dataset_test = Images(48, channels=3, seed=1)
    train_sampler = RASampler(dataset, job.num_ests, 0, shuffle=True)
    data_loader = DataLoader(dataset, args.batch_size, sampler=train_sampler)
    data_loader_test = DataLoader(dataset_test, 16)

    model = build_model()
    criterion = nn.CrossEntropyLoss(label_smoothing=args.label_smoothing)
    parameters = set_weight_decay(model, weight_decay=1e-3, norm_weight_decay=0.0)
    optimizer = torch.optim.SGD(parameters, args.lr, momentum=0.9, nesterov=True)
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=args.lr_warmup_epochs)
    main_lr_scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(
        optimizer, T_max=args.epochs - args.lr_warmup_epochs
    )
    lr_scheduler = torch.optim.lr_scheduler.SequentialLR(
        optimizer, [warmup, main_lr_scheduler], milestones=[args.lr_warmup_epochs]
    )
    model_without_ddp = model
    # The decay is for one update a batch on one process: it is made to fit the job's size.
    adjust = job.num_ests * args.batch_size * args.model_ema_steps / args.epochs
    alpha = min(1.0, (1.0 - args.model_ema_decay) * adjust)
    model_ema = ExponentialMovingAverage(model_without_ddp, decay=1.0 - alpha)

    model, optimizer, data_loader, lr_scheduler, model_ema = job.prepare(
        model, optimizer, data_loader, lr_scheduler, model_ema
    )
    for epoch in job.epochs(args.epochs):
        train_sampler.set_epoch(epoch)
        train_one_epoch(model, criterion, optimizer, data_loader, epoch, args, model_ema)
        lr_scheduler.step()
        evaluate(model, criterion, data_loader_test)
        evaluate(model_ema, criterion, data_loader_test, log_suffix="EMA")
        state = {"model": model_without_ddp.state_dict(), "model_ema": model_ema.state_dict(), "epoch": epoch}
        save_on_master(state, "checkpoint.pth")

    if job.is_leader:
        digest.show(model=model_without_ddp, optimizer=optimizer, ema=model_ema)


if __name__ == "__main__":
    job = elastane.init()
    main()

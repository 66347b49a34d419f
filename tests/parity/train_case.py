"""The training script of all cases: its argument selects what it trains and how (see `cases`)."""

import contextlib
import copy
import math
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    WeightedRandomSampler,
    get_worker_info,
)

import elastane

sys.path.insert(0, str(Path(__file__).parents[1] / "integration" / "gallery"))
sys.path.insert(0, str(Path(__file__).parents[1]))
from parts import SmallTransformer

from parity.cases import Case

case = Case.parse(sys.argv[1])
habits = case.habits
STEPS_OF_A_STREAM = 5 * case.accumulation
LENGTH = 12


class Samples(Dataset):
    """Images or sequences of tokens, with noise from the generators of Python, NumPy and torch."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(31)
        self.inputs = torch.randn(case.size, 3, 8, 8, generator=generator)
        self.tokens = torch.randint(0, 40, (case.size, LENGTH + 1), generator=generator)
        self.labels = torch.randint(0, 5, (case.size,), generator=generator)
        self.rng = np.random.default_rng(32)

    def __len__(self) -> int:
        return case.size

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if case.model in ("transformer", "bag"):
            tokens = self.tokens[index]
            return torch.where(torch.rand(LENGTH + 1) < 0.1, random.randrange(40), tokens), self.labels[index]
        image = self.inputs[index] + 0.1 * torch.randn(3, 8, 8)
        if case.registered:
            image = image + 0.1 * torch.from_numpy(self.rng.normal(size=8).astype("float32"))
        return image * float(np.random.uniform(0.9, 1.1)) + 0.01 * random.random(), self.labels[index]


class HeldOut(Dataset):
    """Ten of the samples, with noise that draws the same number of random numbers in all ranks."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if case.model in ("transformer", "bag"):
            return torch.where(torch.rand(LENGTH + 1) < 0.1, 3, samples.tokens[index]), samples.labels[index]
        noise = torch.rand(3, 8, 8) + random.random() + float(np.random.rand())
        return samples.inputs[index] + 0.1 * noise, samples.labels[index]


class Stream(IterableDataset):
    """An endless stream of the samples; every rank and data worker has its own part."""

    def __init__(self, samples: Samples) -> None:
        self.samples = samples
        self.place: int | None = None

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        if self.place is None:
            self.place = job.rank * workers + worker
        while True:
            sample = self.samples[self.place % len(self.samples)]
            self.place += job.num_ests * workers
            yield sample


class StatefulStream(Stream):
    def state_dict(self) -> dict[str, Any]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.place = state["place"]


class Batches(Sampler[list[int]]):
    """A custom batch sampler: shuffled ranges, one of them short."""

    def __iter__(self) -> Iterator[list[int]]:
        starts = list(range(0, case.size, case.batch_size))
        random.shuffle(starts)
        for start in starts:
            yield [
                int(i) for i in np.random.permutation(range(start, min(start + case.batch_size, case.size)))
            ]

    def __len__(self) -> int:
        return -(-case.size // case.batch_size)


class Branching(nn.Module):
    """A model with two heads, of which a mini-batch uses one or both, and a layer that is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Flatten(), nn.Linear(192, 16), nn.LayerNorm(16), nn.Tanh())
        self.left, self.right, self.never = nn.Linear(16, 5), nn.Linear(16, 5), nn.Linear(3, 3)

    def forward(self, images: torch.Tensor, branch: int) -> torch.Tensor:
        hidden = self.trunk(images)
        if branch < 2:
            return (self.left, self.right)[branch](hidden)
        return self.left(hidden) * self.right(hidden)


def build_model() -> nn.Module:
    drop = nn.Dropout(case.dropout)
    return {
        "mlp": lambda: nn.Sequential(nn.Flatten(), nn.Linear(192, 24), nn.GELU(), drop, nn.Linear(24, 5)),
        "cnn": lambda: nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), drop, nn.Conv2d(8, 4, 3), nn.GroupNorm(2, 4),
            nn.Flatten(), nn.Linear(64, 5),
        ),
        "transformer": lambda: SmallTransformer(length=LENGTH, checkpointing=case.checkpointing),
        "branching": Branching,
        "bag": lambda: nn.Sequential(nn.EmbeddingBag(40, 16), drop, nn.LayerNorm(16), nn.Linear(16, 5)),
        "wide": lambda: nn.Sequential(
            nn.Flatten(), nn.Linear(192, 500), nn.ReLU(), drop, nn.Linear(500, 700), nn.ReLU(),
            nn.Linear(700, 5),
        ),
    }[case.model]()  # fmt: skip


def build_optimizers(net: nn.Module) -> list[torch.optim.Optimizer]:
    parameters, optim = list(net.parameters()), torch.optim
    half = len(parameters) // 2
    if case.optimizer == "two":
        return [optim.SGD(parameters[:half], lr=0.02), optim.AdamW(parameters[half:], lr=2e-3)]
    if case.optimizer == "groups":
        groups = [{"params": parameters[:half], "lr": 1e-2}, {"params": parameters[half:], "momentum": 0.5}]
        return [optim.SGD(groups, lr=0.02, weight_decay=0.01)]
    return [
        {
            "sgd": lambda: optim.SGD(parameters, lr=0.02),
            "nesterov": lambda: optim.SGD(parameters, lr=0.02, momentum=0.9, nesterov=True),
            "adam": lambda: optim.Adam(parameters, lr=2e-3, foreach=True),
            "adamw": lambda: optim.AdamW(parameters, lr=2e-3, weight_decay=0.05),
            "amsgrad": lambda: optim.Adam(parameters, lr=2e-3, amsgrad=True),
            "rmsprop": lambda: optim.RMSprop(parameters, lr=2e-3, centered=True),
            "adagrad": lambda: optim.Adagrad(parameters, lr=0.01),
            "nadam": lambda: optim.NAdam(parameters, lr=2e-3),
        }[case.optimizer]()
    ]


def build_schedulers(optimizers: list[torch.optim.Optimizer]) -> tuple[list[Any], list[Any]]:
    """Return the schedulers to step after every mini-batch, and those to step after every epoch."""
    kinds, first = torch.optim.lr_scheduler, optimizers[0]
    each_step: list[Any] = []
    each_epoch: list[Any] = []
    if case.schedule in ("step", "both"):
        each_step = [kinds.LinearLR(one, 0.2, 1.0, total_iters=6) for one in optimizers]
    if case.schedule in ("epoch", "both"):
        each_epoch = [kinds.StepLR(first, 1, 0.5)]
    if case.schedule == "one-cycle":
        each_step = [kinds.OneCycleLR(first, 0.02, total_steps=400, cycle_momentum=False)]
    return each_step, each_epoch


def settle_in(worker: int) -> None:
    """Seed NumPy and Python's generator, with draws: the script's worker_init_fn."""
    np.random.seed((torch.initial_seed() + worker) % 2**32)
    random.seed(np.random.randint(1 << 30))


def build_loader(samples: Samples) -> DataLoader:
    own = torch.Generator().manual_seed(77)
    options: dict[str, Any] = {"batch_size": case.batch_size, "drop_last": case.drop_last}
    dataset: Any = samples
    if case.sampler == "shuffle":
        options["shuffle"] = True
    elif case.sampler == "batches":
        options = {"batch_sampler": Batches()}
    elif case.sampler in ("stream", "stateful-stream"):
        dataset = (Stream if case.sampler == "stream" else StatefulStream)(samples)
    elif case.sampler != "sequential":
        weights = torch.rand(case.size, generator=torch.Generator().manual_seed(1)).tolist()
        options["sampler"] = {
            "distributed": lambda: DistributedSampler(samples, job.num_ests, 0, seed=5, drop_last=True),
            "weighted": lambda: WeightedRandomSampler(weights, case.size),
            "replacement": lambda: RandomSampler(
                samples,
                replacement=True,
                num_samples=case.size + (-2 if habits.draws_own is None else habits.draws_own),
                generator=own if habits.draws_own is None else None,
            ),
            "random": lambda: RandomSampler(samples, generator=own),
        }[case.sampler]()
    return DataLoader(
        dataset,
        **options,
        num_workers=case.data_workers,
        persistent_workers=case.persistent,
        prefetch_factor=case.prefetch,
        pin_memory=case.pin_memory,
        worker_init_fn=settle_in if case.init_fn else None,
        generator=torch.Generator().manual_seed(78) if case.own_generator else None,
    )


def loss_of(model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    if case.model == "transformer":
        scores = model(inputs[:, :-1])
        return nn.functional.cross_entropy(scores.flatten(0, 1).float(), inputs[:, 1:].flatten())
    if case.model == "bag":
        return nn.functional.cross_entropy(model(inputs).float(), labels)
    if case.channels_last:
        inputs = inputs.to(memory_format=torch.channels_last)
    inputs = inputs.to(dtype)
    inputs = inputs * random.uniform(0.9, 1.1) + 0.01 * torch.randn_like(inputs)
    if case.registered:
        inputs = inputs + 0.01 * float(noise.normal())
    if case.model == "branching":
        return nn.functional.cross_entropy(model(inputs, (job.rank + int(labels[0])) % 3).float(), labels)
    return nn.functional.cross_entropy(model(inputs).float(), labels)


def scores_of(model: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    """Return the model's scores without noise, for validation and teachers."""
    if case.model == "transformer":
        return model(inputs[:, :-1]).float()
    if case.model == "bag":
        return model(inputs).float()
    inputs = inputs.to(dtype)
    return (model(inputs, 2) if case.model == "branching" else model(inputs)).float()


def validate(model: nn.Module) -> None:
    """Iterate over the held-out samples; only its draws of random numbers affect the result."""
    model.train(habits.left_on)
    with torch.no_grad():
        for inputs, _ in validation:
            scores_of(model, inputs)
    model.train()


def metric() -> float:
    """Return a metric that is equal in all ranks: it uses no random numbers and no per-rank buffers."""
    with torch.no_grad():
        if case.model == "cnn":
            return float(sum(parameter.double().abs().mean() for parameter in net.parameters()))
        net.eval()
        inputs = samples.tokens if case.model in ("transformer", "bag") else samples.inputs
        found = float(scores_of(net, inputs[:10]).square().mean())
        net.train()
        return found


def seed_all_alike(seed: int) -> None:
    random.seed(seed), np.random.seed(seed), torch.manual_seed(seed)


job = elastane.init(seed=case.seed)
if case.seed is None:
    random.seed(5), np.random.seed(5), torch.manual_seed(5)
noise = np.random.default_rng(33)
samples = Samples()
if case.registered:
    job.register("noise", noise)
    job.register("dataset.rng", samples.rng)
dtype = {"bf16": torch.bfloat16, "float64": torch.float64}.get(case.precision, torch.float32)
autocast = {"bf16-autocast": torch.bfloat16, "fp16-scaler": torch.float16}.get(case.precision)
net = build_model().to(dtype)
if case.channels_last and case.model == "cnn":
    net = net.to(memory_format=torch.channels_last)
optimizers = build_optimizers(net)
each_step, each_epoch = build_schedulers(optimizers)
scaler = (
    torch.amp.GradScaler("cpu", init_scale=2.0**20, growth_interval=3)
    if case.precision == "fp16-scaler"
    else None
)
average = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.9)) if case.average else None
copied = copy.deepcopy(net).requires_grad_(False).eval() if habits.copied != "none" else None
rates = [[group["lr"] for group in optimizer.param_groups] for optimizer in optimizers]
validation = DataLoader(HeldOut(), 4, shuffle=True, num_workers=habits.validation_workers)
extras = [one for one in (*each_step, *each_epoch, scaler, average, copied) if one is not None]
model, loader, *_ = job.prepare(
    net,
    build_loader(samples),
    *optimizers,
    *extras,
    find_unused_parameters=case.find_unused,
    static_graph=case.static_graph,
    gradient_as_bucket_view=case.bucket_view,
    bucket_cap_mb=case.bucket_cap_mb,
    accumulation_steps=case.accumulation,
    steps_per_epoch=STEPS_OF_A_STREAM if "stream" in case.sampler else None,
)


def zero() -> None:
    for optimizer in optimizers:
        optimizer.zero_grad(set_to_none=not case.in_place_zeros)


if habits.seeded == "prepare":
    seed_all_alike(91)
if habits.draws_early:
    np.random.rand(3), torch.rand(5), random.random()
state = job.carry(best=math.inf, bad=0, found=(), weights=None)

for epoch in job.epochs(case.epochs, max_steps=habits.steps_max or None):
    if habits.seeded == "epoch":
        seed_all_alike(epoch)
    for inputs, labels in loader:
        if habits.rate_by_step:
            for optimizer, first in zip(optimizers, rates, strict=True):
                for group, rate in zip(optimizer.param_groups, first, strict=True):
                    group["lr"] = rate / (1 + 0.1 * job.step + state.bad)
        with torch.autocast("cpu", autocast) if autocast else contextlib.nullcontext():
            loss = loss_of(model, inputs, labels)
            if habits.second_forward:
                loss = loss + 0.1 * scores_of(model, inputs.flip(0)).square().mean()
            if copied is not None and habits.copied == "teacher":
                with torch.no_grad():
                    target = scores_of(copied, inputs).mean()
                loss = loss * (1 + 0.1 * torch.tanh(target))
        job.log(loss=loss)
        if not case.zero_after_step:
            zero()
        (scaler.scale(loss) if scaler else loss).backward()
        if scaler and case.clip != "none":
            for optimizer in optimizers:
                scaler.unscale_(optimizer)
        if case.clip == "norm":
            nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        elif case.clip == "value":
            nn.utils.clip_grad_value_(net.parameters(), 0.01)
        for optimizer in optimizers:
            if scaler:
                scaler.step(optimizer)
            else:
                optimizer.step()
        if scaler:
            scaler.update()
        for scheduler in each_step:
            scheduler.step()
        if case.zero_after_step:
            zero()
        if average is not None and job.stepped:
            average.update_parameters(net)
        if habits.clamped and job.stepped:
            with torch.no_grad():
                for parameter in net.parameters():
                    parameter.clamp_(-0.2, 0.2)
        if copied is not None and job.stepped:
            with torch.no_grad():
                for mean, new in zip(copied.parameters(), net.parameters(), strict=True):
                    mean.lerp_(new, 0.2)
        if habits.evaluated and job.step % 3 == 1:
            with job.isolated_rng():
                validate(model)
    for scheduler in each_epoch:
        scheduler.step()
    if habits.validation in ("all", "both"):
        validate(net)
    if job.is_leader and habits.validation in ("leader", "both"):
        validate(net)
        random.shuffle(list(range(9)))
    if habits.draws_each_rank:
        for rank in job.each_rank():
            np.random.permutation(20 + rank), torch.randn(1 + rank), random.randrange(40)
            if case.registered:
                noise.normal(size=2)
    if habits.carried:
        found = metric()
        state.found = (*state.found, found)
        if found < 0.95 * state.best:
            state.best = found
            state.weights = {name: value.clone() for name, value in model.module.state_dict().items()}
        else:
            state.bad += 1
            for optimizer in optimizers:
                for group in optimizer.param_groups:
                    group["lr"] *= 1 / (1 + min(1.0, found))
            if habits.rolled_back and state.weights is not None:
                model.module.load_state_dict(state.weights)
            if habits.patience and state.bad >= habits.patience:
                break

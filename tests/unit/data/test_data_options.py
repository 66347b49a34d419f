"""The loader's other options, each beside stock, over whole runs, stops in the middle and bigger steps."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, get_worker_info

from slow import further, slow, slow_except
from unit.data.elastic_runs import Setup, check_elastic
from unit.data.loader_runs import DrawingDataset


class Batch(NamedTuple):
    noise: torch.Tensor
    numbers: list[int]


def collate(samples: list[Any]) -> Batch:
    """Draws, shuffles, and returns what default_collate would not."""
    random.shuffle(samples)
    noise = torch.stack([sample[0] for sample in samples]) * float(np.random.rand())
    return Batch(noise + torch.randn(()), [sample[1] for sample in samples])


class SeesWorker:
    """A collate_fn with a state of its own, which belongs to the process: it must not matter."""

    def __call__(self, samples: list[Any]) -> Any:
        info = get_worker_info()
        return None if info is None else (info.id, info.num_workers, info.seed), samples


def init(number: int) -> None:
    random.seed(torch.initial_seed() % 2**31 + number)
    np.random.seed(7)
    torch.rand(number + 1)


OPTIONS: dict[str, dict[str, Any]] = {
    "collate_fn": {"collate_fn": collate},
    "collate_fn, data workers": {"collate_fn": collate, "num_workers": 2},
    "worker info": {"collate_fn": SeesWorker(), "num_workers": 2},
    "worker_init_fn": {"worker_init_fn": init, "num_workers": 2},
    "persistent_workers, worker_init_fn": {
        "worker_init_fn": init,
        "num_workers": 2,
        "persistent_workers": True,
    },
    "prefetch_factor": {"num_workers": 2, "prefetch_factor": 5},
    "prefetch_factor 1": {"num_workers": 3, "prefetch_factor": 1},
    "pin_memory without an accelerator": {"num_workers": 1, "pin_memory": True},
    "timeout": {"num_workers": 2, "timeout": 60},
    "fork": {"num_workers": 2, "multiprocessing_context": "fork"},
    "batch of one": {"batch_size": 1, "num_workers": 2},
    "batch of all": {"batch_size": 50, "num_workers": 1},
    "drop_last": {"drop_last": True, "num_workers": 2},
}


#: The default as a word, and what other cases have as well.
FURTHER = ("collate_fn, data workers", "prefetch_factor", "fork", "batch of all")


#: What `make test` shows: functions of the script in the trainer and in kept data workers, and two of sizes.
QUICK = ("collate_fn", "persistent_workers, worker_init_fn", "prefetch_factor 1", "batch of one")


@pytest.mark.parametrize("case", slow_except(OPTIONS, *QUICK, further=FURTHER))
def test_options_beside_stock(case: str) -> None:
    def build() -> Setup:
        options: dict[str, Any] = {"batch_size": 3, "shuffle": True, **OPTIONS[case]}
        return Setup(DataLoader(DrawingDataset(26), **options))

    check_elastic(build, ests=2, resume_at=(1,))


@pytest.mark.parametrize(
    ("options", "accumulation_steps"),
    [
        ({}, 4),
        pytest.param({"num_workers": 2}, 2, marks=slow),
        ({"num_workers": 2, "persistent_workers": True}, 4),
        pytest.param({}, 2, marks=further),
        pytest.param({"num_workers": 2}, 4, marks=further),
        pytest.param({"num_workers": 2, "persistent_workers": True}, 2, marks=further),
    ],
)
def test_accumulated_steps_and_the_epoch_s_rest(options: dict[str, Any], accumulation_steps: int) -> None:
    """Five mini-batches an epoch, the last one short: steps of 2, 2, 1 or of 4, 1."""

    def build() -> Setup:
        return Setup(DataLoader(DrawingDataset(26), batch_size=3, shuffle=True, **options))

    check_elastic(build, ests=2, epochs=3, accumulation_steps=accumulation_steps, resume_at=(1, 2, 4))


def test_first_middle_and_last_step_and_between_epochs() -> None:
    """A worker that takes over at any step of three epochs gives the stock batches."""

    def build() -> Setup:
        return Setup(DataLoader(DrawingDataset(14), batch_size=2, shuffle=True, num_workers=1))

    check_elastic(build, ests=2, epochs=3, resume_at=range(11))

"""Seeds and epochs as scripts set them."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from structlog.testing import capture_logs
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from elastane.rng import seed_all
from elastane.runtime.rng_watch import OutsideRank, RngWatch
from elastane.runtime.sampler_epoch import SamplerEpochError, watch_set_epoch


def test_seeds_beyond_32_bits() -> None:
    seed_all(2**40 + 7)
    found = random.random(), np.random.rand(), torch.rand(1)
    random.seed(2**40 + 7)
    np.random.seed(7)
    torch.manual_seed(2**40 + 7)
    assert found == (random.random(), np.random.rand(), torch.rand(1))


def test_what_is_computed_of_the_rank_is_no_seed(capsys: pytest.CaptureFixture[str]) -> None:
    watch = RngWatch(lambda place: None, lambda names, done: None)
    watch.start()
    try:
        for seed in (torch.manual_seed, random.seed, np.random.seed, np.random.default_rng):
            with pytest.raises(SystemExit) as refused:
                seed((3 + OutsideRank(0) * 1000) % 17)
            assert refused.value.code == 82
            assert "test_seeds.py, line" in capsys.readouterr().err
            seed(3)
    finally:
        watch.stop()


def sampled(**options: bool) -> DataLoader[tuple[torch.Tensor, ...]]:
    data = TensorDataset(torch.arange(8))
    return DataLoader(data, 2, sampler=DistributedSampler(data, 2, 0, **options))


def test_another_epoch_is_refused_and_none_is_warned_of() -> None:
    loader = sampled()
    epoch = watch_set_epoch(loader)
    assert epoch is not None
    epoch.check(0)
    with capture_logs() as logs:
        epoch.check(1)
        epoch.check(2)
    assert [entry["log_level"] for entry in logs] == ["warning"]
    loader.sampler.set_epoch(3)  # type: ignore[attr-defined]
    epoch.check(3)
    assert loader.sampler.epoch == 3  # type: ignore[attr-defined]
    with pytest.raises(SamplerEpochError, match="last given 3, and this is epoch 4"):
        epoch.check(4)


def test_a_sampler_that_keeps_its_order_may_be_told_anything() -> None:
    loader = sampled(shuffle=False)
    epoch = watch_set_epoch(loader)
    assert epoch is not None
    loader.sampler.set_epoch(9)  # type: ignore[attr-defined]
    epoch.check(0)
    assert watch_set_epoch(DataLoader(TensorDataset(torch.arange(8)))) is None

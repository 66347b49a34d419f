"""Samples of each rank and epoch, and the parts that are gathered, beside Accelerate's own loaders."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from accelerate.data_loader import prepare_data_loader
from torch.utils.data import DataLoader, RandomSampler, WeightedRandomSampler

from elastane.integrations.accelerate import AccelerateError, ElasticAccelerator
from elastane.integrations.rank_batches import RankBatches
from elastane_common.errors import UnsupportedError

RANKS = 3
EPOCHS = 3


def loader(kind: str, generator: torch.Generator | None = None) -> DataLoader[int]:
    data = list(range(35))
    if kind == "sequential":
        return DataLoader(data, 6)
    if kind == "weighted":
        weights = torch.arange(1.0, 36)
        return DataLoader(data, 6, sampler=WeightedRandomSampler(weights, 40, generator=generator))
    return DataLoader(data, 6, shuffle=True, generator=generator, drop_last=kind == "drop_last")


def prepared(given: DataLoader[int], rank: int, **options: bool) -> DataLoader[int]:
    torch.manual_seed(5)
    return prepare_data_loader(given, num_processes=RANKS, process_index=rank, **options)


@pytest.mark.parametrize("kind", ["sequential", "shuffled", "drop_last", "weighted"])
@pytest.mark.parametrize("options", [{}, {"split_batches": True}, {"use_seedable_sampler": True}])
@pytest.mark.parametrize("own", [False, True])
def test_a_rank_has_accelerates_samples_in_any_epoch(kind: str, options: dict[str, bool], own: bool) -> None:
    def generator() -> torch.Generator | None:
        return torch.Generator().manual_seed(9) if own or kind == "weighted" else None

    stock = [prepared(loader(kind, generator()), rank, **options) for rank in range(RANKS)]
    expected = [[[batch.tolist() for batch in one] for one in stock] for _ in range(EPOCHS)]
    given = loader(kind, generator())
    batches = RankBatches(prepared(given, 0, **options).batch_sampler, given.generator)
    for epoch in (2, 0, 1):  # a worker may begin with any of them
        batches.set_epoch(epoch)
        for rank in range(RANKS):
            one = copy.deepcopy(batches)
            one.rank = rank
            assert list(one) == expected[epoch][rank]
        rounds = itertools.chain.from_iterable(zip(*expected[epoch], strict=True))
        assert list(batches.all_ranks()) == list(rounds)


def test_an_order_of_each_ranks_own_is_refused() -> None:
    class Own(torch.utils.data.Sampler[int]):
        def __iter__(self):
            return iter(torch.randperm(35).tolist())

        def __len__(self):
            return 35

    shard = prepared(DataLoader(list(range(35)), 6, sampler=Own()), 0)
    with pytest.raises(UnsupportedError, match="Own without a generator"):
        RankBatches(shard.batch_sampler, None)
    with_one = prepared(DataLoader(list(range(35)), 6, sampler=RandomSampler(range(35))), 0)
    assert len(RankBatches(with_one.batch_sampler, None)) == 2


@pytest.mark.parametrize("name", ["fsdp_plugin", "deepspeed_plugin", "parallelism_config", "dynamo_backend"])
def test_what_cuts_the_model_is_refused_by_name(name: str) -> None:
    with pytest.raises(AccelerateError, match=name):
        ElasticAccelerator(**{name: "inductor"})

"""What scripts of Accelerate collect over a loop that does not train."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate.data_loader import DataLoaderShard, prepare_data_loader
from accelerate.state import GradientState
from torch.utils.data import DataLoader

from elastane.integrations.accelerate import AccelerateError, ElasticAccelerator, PreparedLoader
from elastane.integrations.rank_batches import RankBatches


class Alone(ElasticAccelerator):
    """One without a job."""

    def __init__(self, ranks: int) -> None:
        self._job = SimpleNamespace(num_ests=ranks, _trainer=None)  # type: ignore[assignment]
        self._whole, self._training_loader = False, None
        self.gradient_state = GradientState()


def evaluation(accelerator: Alone, size: int, batch_size: int, **options: Any) -> PreparedLoader:
    given = DataLoader(list(range(size)), batch_size, **options)
    shard = prepare_data_loader(given, num_processes=accelerator.num_processes, process_index=0)
    assert type(shard) is DataLoaderShard
    loader = PreparedLoader.__new__(PreparedLoader)
    loader.__dict__ = shard.__dict__
    loader.accelerator, loader.batches = accelerator, RankBatches(shard.batch_sampler, None)
    return loader


@pytest.mark.parametrize("size", [4, 12, 13, 23, 24, 25])
def test_each_sample_is_collected_once_and_in_order(size: int) -> None:
    accelerator, collected, objects = Alone(3), [], []
    loader = evaluation(accelerator, size, 4)
    batches = 0
    for batch in loader:
        batches += 1
        assert len(batch) == 4  # as a rank has it: the last ones are completed
        collected.append(accelerator.gather_for_metrics(batch))
        objects += accelerator.gather_for_metrics([str(one) for one in batch.tolist()])
        assert accelerator.gather(batch.sum()).shape == (1,)
    assert torch.cat(collected).tolist() == list(range(size))
    assert objects == [str(one) for one in range(size)]
    assert batches == len(loader)


def test_values_of_all_ranks_outside_of_such_a_loop_are_refused() -> None:
    accelerator = Alone(2)
    with pytest.raises(AccelerateError, match="gather was called outside of a loop"):
        accelerator.gather(torch.ones(2))
    with pytest.raises(AccelerateError, match="reduce"):
        accelerator.reduce(torch.ones(2), "mean")
    assert accelerator.reduce(torch.tensor(3.0)) == 3
    with pytest.raises(AccelerateError, match="load_state"):
        accelerator.load_state("folder")

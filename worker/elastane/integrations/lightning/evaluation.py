"""Validation at the end of an epoch, with the result that all ranks of DDP reach together.

Each DDP rank validates its part of the dataset. Here every worker runs the batches of all ranks, one rank
after the other: no values need to be exchanged, but each worker processes the whole dataset.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from lightning.pytorch.loops.evaluation_loop import _EvaluationLoop
from lightning.pytorch.trainer.connectors.data_connector import _get_distributed_sampler, _parse_num_batches
from lightning.pytorch.trainer.states import RunningStage
from lightning.pytorch.utilities.combined_loader import CombinedLoader
from lightning.pytorch.utilities.data import _update_dataloader
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler, SequentialSampler

from elastane.integrations.lightning.metrics import RankSums, monitored, names_of
from elastane.integrations.lightning.ranks import Ranks
from elastane.integrations.lightning.refusals import check_loader, refused
from elastane.rng import Generators


class RanksInTurn:
    """Yields the batches of all ranks, one rank after the other.

    loader: has a DistributedSampler, of any rank. batches: number of batches of each rank.
    """

    def __init__(self, loader: DataLoader[Any], batches: int, loop: ElasticEvaluationLoop) -> None:
        self._loader, self._loop, self.batches = loader, loop, batches
        self.sampler: Any = loader.sampler
        self._generators = Generators(loop.trainer.strategy.root_device)
        self._iterator: Iterator[Any] = iter(())

    def __len__(self) -> int:
        return self.batches * int(self.sampler.num_replicas)

    def __iter__(self) -> Iterator[Any]:
        self._iterator = self._in_turn()
        return self._iterator

    def end(self) -> None:
        """End the last rank; Lightning stops iterating after the number of batches it has counted."""
        next(self._iterator, None)

    def _in_turn(self) -> Iterator[Any]:
        # Each rank draws a seed when its iterator begins; the script's generators must advance as for one
        # rank.
        before = self._generators.capture()
        for rank in range(self.sampler.num_replicas):
            if rank:
                self._generators.restore(before)
            self.sampler.rank = rank
            batches, drawn = iter(self._loader), self._generators.capture()
            yield from islice(batches, self.batches)
            if self._generators.capture() != drawn:
                raise refused(
                    "validation draws random numbers, and each rank has its own",
                    "draw under `with self.trainer.strategy.job.isolated_rng():`",
                )
            self._loop.end_rank()


class ElasticEvaluationLoop(_EvaluationLoop):
    """Lightning's validation loop over the batches of all ranks."""

    ranks: Ranks
    _ranks: RanksInTurn
    _sums: RankSums | None = None

    def setup_data(self) -> None:
        if self._combined_loader is not None:
            return
        super().setup_data()
        found: CombinedLoader | None = self._combined_loader
        if found is None or self.ranks.count == 1:
            return
        if len(found.flattened) != 1:
            raise refused(f"{len(found.flattened)} loaders of validation", "concatenate their data sets")
        loader = with_sampler(check_loader("val_dataloader", found.flattened[0]), self.ranks.count)
        batches = _parse_num_batches(RunningStage.VALIDATING, len(loader), self.trainer.limit_val_batches)
        self._ranks = RanksInTurn(loader, int(batches), self)
        found.flattened = [self._ranks]
        self._max_batches = [len(self._ranks)]

    def on_run_start(self) -> None:
        if self.ranks.count > 1:
            self._sums = RankSums(self._results, self.trainer.lightning_module)
        super().on_run_start()

    def end_rank(self) -> None:
        """Record that all batches of a rank have been run."""
        if self._sums is not None and not self.trainer.sanity_checking:
            self._sums.end_rank()

    def _evaluation_step(self, batch: Any, batch_idx: int, *others: Any) -> None:
        if self._sums is not None:
            batch_idx %= self._ranks.batches
        self.ranks.validates = self._sums is not None
        super()._evaluation_step(batch, batch_idx, *others)
        self.ranks.validates = False

    def _store_dataloader_outputs(self) -> None:
        if self._sums is not None and not self.trainer.sanity_checking:
            self._ranks.end()
            self._sums.reduce(monitored(self.trainer))
        self._sums = None
        super()._store_dataloader_outputs()

    def on_run_end(self) -> list[Any]:
        outputs = super().on_run_end()
        if not self.trainer.sanity_checking:
            names = [name for metric in self._results.values() for name in names_of(metric)]
            self.ranks.states.validated(names)
        return outputs


def with_sampler(loader: DataLoader[Any], ests: int, *, shuffle: bool | None = None) -> DataLoader[Any]:
    """Return the loader with the sampler that Lightning gives it under DDP, for rank 0.

    shuffle: None keeps the loader's own setting. Raises LightningError if the script gave a custom sampler.
    """
    if not isinstance(loader.sampler, RandomSampler | SequentialSampler):
        if isinstance(loader.sampler, DistributedSampler):
            return loader
        raise refused(
            f"a {type(loader.sampler).__name__} as sampler", "use shuffle=, or a DistributedSampler"
        )
    shuffle = isinstance(loader.sampler, RandomSampler) if shuffle is None else shuffle
    sampler = _get_distributed_sampler(loader, shuffle, 0, num_replicas=ests, rank=0)
    return _update_dataloader(loader, sampler)

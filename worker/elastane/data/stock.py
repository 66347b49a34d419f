"""DataLoader of a rank of a stock run: torch's own, iterated as torch does.

It is the reference for all elastic results, so it uses nothing of the elastic side but the way in which
batches of a script's own sampler are dealt out, which stock PyTorch leaves to the script.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader, _DatasetKind

from elastane.data.errors import DataError
from elastane.data.loader_settings import OrderKind, check_loader, sampler_settings
from elastane.data.script_order import RankOrder, ScriptOrder


class StockIterableLoader(DataLoader[Any]):
    """Torch's DataLoader over an IterableDataset, cut off after `batches` of an epoch."""

    batches: int

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        iterator = super().__iter__()
        count = 0
        for batch in itertools.islice(iterator, self.batches):
            count += 1
            yield batch
        if count == 0 and self.num_workers == 0:
            # The last epoch was cut off exactly at the dataset's end, which the iterator detects only now. A
            # loop without the cut would have detected it then, and begun again here.
            iterator._dataset_fetcher = _DatasetKind.create_fetcher(  # type: ignore[attr-defined]
                _DatasetKind.Iterable,
                self.dataset,
                self.batch_size is not None,
                self.collate_fn,
                self.drop_last,
            )
            for batch in itertools.islice(iterator, self.batches):
                count += 1
                yield batch
        if count < self.batches:
            raise ended_early(count, self.batches)

    def __len__(self) -> int:
        return self.batches


def stock_loader(
    loader: DataLoader[Any], num_replicas: int, rank: int, *, steps_per_epoch: int | None = None
) -> DataLoader[Any]:
    """Return the DataLoader of rank `rank` of a stock run; the caller calls `set_epoch` before every epoch.

    loader: the script's. steps_per_epoch: as in `check_loader`, whose errors it raises.
    """
    kind = check_loader(loader, num_replicas, steps_per_epoch=steps_per_epoch)
    options: dict[str, Any] = {
        "num_workers": loader.num_workers,
        "collate_fn": loader.collate_fn,
        "pin_memory": loader.pin_memory,
        "timeout": loader.timeout,
        "worker_init_fn": loader.worker_init_fn,
        "multiprocessing_context": loader.multiprocessing_context,
        "generator": loader.generator,
        "prefetch_factor": loader.prefetch_factor,
        "persistent_workers": loader.persistent_workers,
    }
    if kind is OrderKind.ITERABLE:
        iterable = StockIterableLoader(
            loader.dataset, batch_size=loader.batch_size, drop_last=loader.drop_last, **options
        )
        iterable.batches = steps_per_epoch if steps_per_epoch is not None else len(loader)
        return iterable
    if kind is OrderKind.SCRIPT:
        order = RankOrder(ScriptOrder(loader, num_replicas), rank)
        if loader.batch_sampler is None:
            return DataLoader(loader.dataset, batch_size=None, sampler=order, **options)
        return DataLoader(loader.dataset, batch_sampler=order, **options)
    settings = sampler_settings(loader, num_replicas)
    assert settings is not None
    return DataLoader(
        loader.dataset,
        batch_size=loader.batch_size,
        sampler=settings.build(loader.dataset, rank),
        drop_last=loader.drop_last,
        **options,
    )


def set_epoch(loader: DataLoader[Any], epoch: int) -> None:
    """Set the next epoch of a loader made by `stock_loader`."""
    for sampler in (loader.batch_sampler, loader.sampler):
        call = getattr(sampler, "set_epoch", None)
        if callable(call):
            call(epoch)


def ended_early(given: int, expected: int) -> DataError:
    """Build the error for an IterableDataset with too few batches, in the stock and in the elastic run."""
    return DataError(
        f"the IterableDataset ended after {given} mini-batches of an epoch of {expected}",
        hint="set steps_per_epoch to the number that every rank has, or let the dataset restart at its end",
        given=given,
        expected=expected,
    )

"""The batches of each EST of a worker, bit for bit those of stock rank r's DataLoader.

    position(contexts)            where each EST stands; batches made ahead from there
    restore the EST's generators  (the caller)
    batch, info = begin(rank)     as the stock iterator's next(): draws base_seed at an epoch's first batch
    forward, backward             (the caller)
    parts = finish(rank)          loader position and stream states after the batch: part of the next context

Without data workers a batch is made in `begin`, from the EST's own generators, as stock does. With W of
them, batch b is made by stream b mod W from its own states R_ij, some batches ahead. What counts is
R_ij as of the last batch *consumed*: batches made ahead are thrown away by `position` and made again.

Not kept, because stock keeps it nowhere either or because one process now serves several ESTs: changes
that a dataset makes to itself in a data worker are seen by all ESTs and outlast the epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._utils import ExceptionWrapper
from torch.utils.data import DataLoader
from torch.utils.data._utils.fetch import _MapDatasetFetcher

from elastane.context import LOADER, ContextError, EstContext, LoaderPosition, Parts, stream_parts
from elastane.data.data_worker import AttributeChange, DataWork, StreamTask
from elastane.data.dataset_attributes import DatasetAttributes
from elastane.data.order import BatchInfo, EpochOrders
from elastane.data.own_generators import OwnGenerators
from elastane.data.pinning import Pinner
from elastane.data.pool import Answer, DataWorkerPool
from elastane.data.settings import sampler_settings
from elastane.data.transfer import Message

__all__ = ["BatchInfo", "BatchSource"]


@dataclass(slots=True)
class _Turns:
    """Where one EST stands, and what is asked for ahead of it."""

    epoch: int
    batch: int  # of the epoch: the next to consume, or being consumed
    base_seed: int | None
    streams: dict[int, Parts]  # stream -> states after its last consumed batch; missing: not yet seeded
    asked: int = 0  # batches of the epoch asked for, from 0 on
    asked_streams: set[int] = field(default_factory=set)  # which have a task in this session
    consumed: Parts | None = None  # states after the batch that is out
    out: bool = False


class BatchSource:
    """Gives each EST the batches of a stock rank. Raises UnsupportedError for what cannot be exact.

    loader: the script's DataLoader, of which it is only a description. num_ests: N of the job. One
    thread uses it.
    """

    def __init__(self, loader: DataLoader[Any], num_ests: int) -> None:
        settings = sampler_settings(loader, num_ests)
        assert loader.batch_size is not None, "refused by sampler_settings"
        self._dataset = loader.dataset
        self._persistent = bool(loader.persistent_workers)
        self._prefetch_factor = loader.prefetch_factor or 0
        self._timeout_seconds = loader.timeout or None
        self.num_ests = num_ests
        self.num_workers = loader.num_workers
        self.batch_size = loader.batch_size
        self.dataset_size = len(loader.dataset)  # type: ignore[arg-type]
        self._orders = EpochOrders(self.dataset_size, self.batch_size, loader.drop_last, settings)
        self.steps_per_epoch = self._orders.batches
        work = DataWork(
            loader.dataset, loader.collate_fn, loader.worker_init_fn, loader.drop_last, loader.num_workers
        )
        self._fetcher = _MapDatasetFetcher(work.dataset, True, work.collate_fn, work.drop_last)
        self._own = OwnGenerators(loader.dataset)
        self._pin = bool(loader.pin_memory)
        self._pinner: Pinner | None = None
        self._pool = DataWorkerPool(work, self._receive)
        self._attributes: DatasetAttributes | None = None
        self._attributes_epoch: int | None = None
        self._turns: dict[int, _Turns] = {}

    def start(self) -> None:
        """Forks the data workers, if there are to be any. Before any gRPC channel exists."""
        if self.num_workers > 0:
            self._attributes = DatasetAttributes(self._dataset)
            self._pool.start()

    def close(self) -> None:
        """Ends the data workers. A second call does nothing."""
        self._pool.close()
        if self._pinner is not None:
            self._pinner.close()

    def position(self, contexts: Mapping[int, EstContext], step: int) -> None:
        """Starts from these contexts of the ESTs hosted now (virtual rank -> context at the start of `step`).

        After Go and before a replay. Whatever was made ahead is thrown away. Raises ContextError.
        """
        if self._pin and self._pinner is None and torch.accelerator.is_available():
            self._pinner = Pinner()  # only now: after the fork, and in the thread that trains
        self._pool.new_session()
        self._turns = {rank: self._turns_of(context, step) for rank, context in sorted(contexts.items())}
        self._ask_ahead()

    def begin(self, rank: int) -> tuple[Any, BatchInfo]:
        """The next batch of EST `rank`, whose generators are the present ones.

        Raises what the dataset raises (from a data worker with the traceback there), DataWorkerError if
        a data worker ended. After an error `position` is needed.
        """
        turns = self._turns[rank]
        assert not turns.out, f"EST {rank} has not finished its batch"
        self._sync_attributes(turns.epoch)
        if turns.base_seed is None:
            # Drawn by stock's iterator at the start of an epoch, with data workers or without.
            turns.base_seed = int(torch.empty((), dtype=torch.int64).random_().item())
        info = self._orders.batch(turns.epoch, rank, turns.batch)
        if self.num_workers == 0:
            batch = self._fetcher.fetch(list(info.samples))
            self._own.check()
            if self._pinner is not None:
                batch = self._pinner.pin(batch)
        else:
            batch = self._take(rank, turns)
        turns.out = True
        return batch, info

    def finish(self, rank: int) -> Parts:
        """The loader position, and the states of the stream used, after the batch given by `begin`."""
        turns = self._turns[rank]
        assert turns.out, f"EST {rank} has no batch to finish"
        turns.out = False
        parts: Parts = {}
        if turns.consumed is not None:
            stream = turns.batch % self.num_workers
            turns.streams[stream] = turns.consumed
            parts = stream_parts(stream, turns.consumed)
            turns.consumed = None
        turns.batch += 1
        if turns.batch == self.steps_per_epoch:
            self._end_epoch(turns)
        parts[LOADER] = LoaderPosition(turns.epoch, turns.batch, turns.base_seed).pack()
        return parts

    def _end_epoch(self, turns: _Turns) -> None:
        turns.epoch += 1
        turns.batch = turns.asked = 0
        if not self._persistent:  # else stock neither draws nor seeds again
            turns.base_seed = None
            turns.streams.clear()
            turns.asked_streams.clear()

    def _turns_of(self, context: EstContext, step: int) -> _Turns:
        position = context.position
        epoch, batch = divmod(step, self.steps_per_epoch)
        if context.step != step or (position.epoch, position.batch) != (epoch, batch):
            raise ContextError(
                f"the context of EST {context.virtual_rank} is of step {context.step}, "
                f"epoch {position.epoch}, batch {position.batch}; "
                f"wanted is step {step}, epoch {epoch}, batch {batch}",
                hint="dataset, batch size and number of ESTs must be those the job began with",
                virtual_rank=context.virtual_rank,
                step=step,
            )
        turns = _Turns(epoch, batch, position.base_seed, {}, asked=batch)
        if batch > 0 and position.base_seed is None:
            raise ContextError(
                f"the context of EST {context.virtual_rank} is in the middle of an epoch without base_seed",
                virtual_rank=context.virtual_rank,
                step=step,
            )
        for stream in range(min(self.num_workers, self._streams_used(epoch, batch))):
            turns.streams[stream] = states = context.stream(stream)
            if not states:
                raise ContextError(
                    f"the context of EST {context.virtual_rank} lacks the states of data-worker "
                    f"stream {stream}",
                    hint="the job began with another num_workers",
                    virtual_rank=context.virtual_rank,
                    stream=stream,
                )
        return turns

    def _streams_used(self, epoch: int, batch: int) -> int:
        """How many streams have consumed batches since they were seeded: the first so many."""
        if self._persistent and epoch > 0:
            return self.steps_per_epoch
        return batch

    def _sync_attributes(self, epoch: int) -> None:
        """What the script set on the dataset since the last epoch, stock's newly forked workers would see."""
        if epoch == self._attributes_epoch or self._attributes is None or self._persistent:
            return
        self._attributes_epoch = epoch
        changed = self._attributes.changes()
        if not changed:
            return
        self._pool.new_session()
        self._pool.change_attributes(AttributeChange(changed))
        for turns in self._turns.values():
            turns.asked = turns.batch + turns.out
            turns.asked_streams.clear()
        self._ask_ahead()

    def _ask_ahead(self) -> None:
        """Asks for batches of all ESTs, the soonest needed first."""
        if self.num_workers == 0:
            return
        for ahead in range(1, self._ahead() + 1):
            for rank in self._turns:
                self._ask(rank, ahead)

    def _ahead(self) -> int:
        """Batches made ahead for one EST.

        As many as stock for a single one. Several share stock's number, prefetch_factor * W, but every
        EST has at least one for each stream, so that all data workers have work.
        """
        return max(self.num_workers, self._prefetch_factor * self.num_workers // max(1, len(self._turns)))

    def _ask(self, rank: int, ahead: int) -> None:
        """Asks for the batches of EST `rank` until `ahead` are asked for that are not yet out."""
        turns = self._turns[rank]
        if turns.base_seed is None:
            return
        last = min(turns.batch + turns.out + ahead, self.steps_per_epoch)
        for batch in range(turns.asked, last):
            stream = batch % self.num_workers
            follows = stream in turns.asked_streams
            turns.asked_streams.add(stream)
            task = StreamTask(
                session=self._pool.session,
                rank=rank,
                batch=batch,
                samples=self._orders.batch(turns.epoch, rank, batch).samples,
                base_seed=turns.base_seed,
                follows=follows,
                start=None if follows else turns.streams.get(stream),
            )
            self._pool.submit(stream, task)
            turns.asked = batch + 1

    def _receive(self, message: Message) -> Answer:
        return message if self._pinner is None else self._pinner.take_over(message)

    def _take(self, rank: int, turns: _Turns) -> Any:
        self._ask(rank, self._ahead())
        message = self._pool.take(turns.batch % self.num_workers, rank, turns.batch, self._timeout_seconds)
        batch, turns.consumed = message.load()
        if isinstance(batch, ExceptionWrapper):
            batch.reraise()
        turns.out = True
        self._ask(rank, self._ahead())
        return batch

"""Batches of each EST of a worker, bit for bit those of stock rank r's DataLoader.

    position(contexts)            sets the position of each EST; batches are made in advance from there
    restore the EST's generators and registered items        (the caller)
    batch, info = begin(rank)     like the stock iterator's next(): draws base_seed at an epoch's first batch
    forward, backward             (the caller)
    parts = finish(rank)          loader position and stream states after the batch, for the next context

Without data workers a batch is made in `begin`, from the EST's own generators, as in stock. With W of
them, batch b is made by stream b mod W from its own states R_ij, some batches in advance. Contexts hold
R_ij as of the last batch *consumed*: batches made in advance are discarded by `position` and made again.

Streams of an IterableDataset may end at different times. Stock then continues with the others, in turn. So
batches are taken from *slots*: slot s belongs to stream s mod W, and slots of streams that have ended are
skipped. While no stream has ended, as always with a map-style dataset, slot and batch are the same number.

Not kept, because stock keeps it nowhere either or because one process now serves several ESTs: changes
that a map-style dataset makes to itself in a data worker are seen by all ESTs and outlast the epoch.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import structlog
import torch
from torch._utils import ExceptionWrapper
from torch.utils.data import DataLoader, IterableDataset

from elastane.context import LOADER, ContextError, EstContext, LoaderPosition, Parts, stream_parts
from elastane.data import current
from elastane.data.batch_maker import AttributeChange, DataWork, StreamTask
from elastane.data.dataset_attributes import DatasetAttributes
from elastane.data.iterable import ITERATOR, StreamEnd
from elastane.data.loader_generator import GENERATOR, LoaderGenerator
from elastane.data.local import LocalMaker
from elastane.data.order import BatchInfo, DistributedOrders, ScriptOrders, orders_of
from elastane.data.pinning import Pinner
from elastane.data.pool import Answer, DataWorkerPool
from elastane.data.stock import ended_early
from elastane.data.transfer import Message
from elastane.registry import ITEM, RESERVED, Registry

__all__ = ["BatchInfo", "BatchSource"]

_log = structlog.get_logger(__name__)

#: Registered items as they were when stock would have forked the data workers: "item/@fork.NAME".
FORKED: Final = f"{ITEM}{RESERVED}fork."
#: Marks the end of a stream: epoch, and number of batches it gave.
ENDED: Final = f"{ITEM}{RESERVED}ended"
_ENDED = struct.Struct("<qq")


@dataclass(slots=True)
class _Cursor:
    """Position of one EST, and the batches requested in advance for it."""

    epoch: int
    batch: int  # of the epoch: the next to consume, or being consumed
    slot: int  # the slot of that batch
    base_seed: int | None
    streams: dict[int, Parts]  # stream -> states after its last consumed batch; missing: not yet seeded
    forked: Parts = field(default_factory=dict)  # registered items at the start of the epoch
    ended: dict[int, int] = field(default_factory=dict)  # stream -> batches it gave in this epoch
    generator: bytes | None = None
    asked: int = 0  # number of the epoch's slots requested so far
    asked_streams: set[int] = field(default_factory=set)  # streams with a task in this session
    consumed: Parts | None = None  # states that changed with the current batch
    news: Parts = field(default_factory=dict)  # further parts for the next context
    end: int | None = None  # limit of the epoch's batches to request
    out: bool = False


class BatchSource:
    """Gives each EST the batches of a stock rank. Raises UnsupportedError for loaders that cannot be exact.

    loader: the script's DataLoader, used only as a description. num_ests: N of the job. registry: the
    script's registered items. accumulation_steps: mini-batches of an EST in one global step; an epoch's
    remainder makes a shorter step. steps_per_epoch: mini-batches of an EST in an epoch, for datasets without
    a length. Used by one thread.

    Attributes: batches_per_epoch (mini-batches of an EST), steps_per_epoch (global steps),
    signature_batch_size (positions of one EST in a full global step), dataset_size (positions in an epoch).
    """

    def __init__(
        self,
        loader: DataLoader[Any],
        num_ests: int,
        *,
        registry: Registry | None = None,
        accumulation_steps: int = 1,
        steps_per_epoch: int | None = None,
    ) -> None:
        self.registry = registry if registry is not None else Registry()
        self.accumulation_steps = accumulation_steps
        self.num_ests = num_ests
        self.num_workers = loader.num_workers
        self.batch_size = loader.batch_size or 1
        self._orders = orders_of(
            loader, num_ests, accumulation_steps=accumulation_steps, steps_per_epoch=steps_per_epoch
        )
        self.batches_per_epoch = self._orders.batches
        self.steps_per_epoch = -(-self.batches_per_epoch // accumulation_steps)
        self.signature_batch_size = self._orders.step_size
        self.dataset_size = self._orders.dataset_size
        self._dataset = loader.dataset
        self._iterable = isinstance(loader.dataset, IterableDataset)
        self._persistent = bool(loader.persistent_workers)
        self._prefetch_factor = loader.prefetch_factor or 0
        self._timeout_seconds = loader.timeout or None
        work = DataWork(
            loader.dataset,
            loader.collate_fn,
            loader.worker_init_fn,
            loader.drop_last,
            loader.num_workers,
            auto_collation=loader.batch_sampler is not None or (self._iterable and bool(loader.batch_size)),
            iterable=self._iterable,
            registry=self.registry,
        )
        self._generator = LoaderGenerator(loader, self.registry)
        own = [loader.generator] if loader.generator is not None else []
        self._local = LocalMaker(work, own, lambda given: ended_early(given, self.batches_per_epoch))
        self._pin = bool(loader.pin_memory)
        self._pinner: Pinner | None = None
        self._pool = DataWorkerPool(work, self._receive)
        self._attributes: DatasetAttributes | None = None
        self._attributes_epoch: int | None = None
        self._cursors: dict[int, _Cursor] = {}
        self._replay_said = False

    def index(self, epoch: int, rank: int, batch: int) -> Any:
        """Return the argument for the dataset of an EST's mini-batch, as a list of samples."""
        return self._orders.index(epoch, rank, batch)

    def start(self) -> None:
        """Fork the data workers, if any. Must come before any gRPC channel exists."""
        # Without data workers a map-style dataset is the script's own object and needs no updates.
        if self.num_workers > 0 or self._iterable:
            self._attributes = DatasetAttributes(self._dataset)
        if self.num_workers > 0:
            self._pool.start()

    def close(self) -> None:
        """End the data workers. A second call does nothing."""
        self._pool.close()
        if self._pinner is not None:
            self._pinner.close()

    def order_warning(self) -> str:
        """Describe the effect of a sampler that does not know ranks; empty for any other."""
        dealt = self._orders.dealt if self.num_ests > 1 and isinstance(self._orders, ScriptOrders) else ""
        return dealt and (
            f"the loader's {dealt} does not know ranks: its batches are dealt out to the {self.num_ests} "
            "ESTs, and drawn anew in each epoch from the number of the epoch. Under DistributedDataParallel "
            "each rank goes through a sampler of its own: for its result give the sampler the attributes "
            "num_replicas and rank, as DistributedSampler has them"
        )

    def batches_in_step(self, step: int) -> int:
        """Return the mini-batches of each EST in step `step`: accumulation_steps, or the remainder."""
        first = step % self.steps_per_epoch * self.accumulation_steps
        return min(self.accumulation_steps, self.batches_per_epoch - first)

    def expect(self, step: int) -> None:
        """Shuffle for the epoch of `step` now; `position` would do so later, when all others wait.

        Only for orders that follow from the epoch alone: a script's own sampler is not called.
        """
        if isinstance(self._orders, DistributedOrders):
            self._orders.order(step // self.steps_per_epoch)

    def position(self, contexts: Mapping[int, EstContext], step: int) -> None:
        """Set the position from the contexts of the ESTs hosted now (virtual rank -> context at the start of
        `step`).

        Called after Go and before a replay. Batches made in advance are discarded. Raises ContextError.
        """
        if self._pin and self._pinner is None and torch.accelerator.is_available():
            self._pinner = Pinner()  # after the fork, and in the thread that trains
        self._pool.new_session()
        self._cursors = {rank: self._cursor_of(context, step) for rank, context in sorted(contexts.items())}
        self._local.position({rank: context.parts for rank, context in contexts.items()})
        self._ask_ahead()

    def take_in(self, context: EstContext, step: int) -> None:
        """Add another worker's EST to those hosted here, for global step `step` alone; until `forget`.

        Batches made in advance for the others are kept. Raises ContextError.
        """
        cursor = self._cursor_of(context, step)
        cursor.end = cursor.batch + self.batches_in_step(step)
        self._cursors[context.virtual_rank] = cursor
        self._local.take_in(context.virtual_rank, context.parts)

    def forget(self, rank: int) -> None:
        """Remove the EST added by `take_in`."""
        del self._cursors[rank]
        self._local.forget(rank)

    def begin(self, rank: int) -> tuple[Any, BatchInfo]:
        """Return the next batch of EST `rank`, whose generators and registered items must be in place.

        Errors of the dataset pass through (from a data worker with its traceback). Raises DataWorkerError if
        a data worker ended, DataError for a dataset or sampler with too few batches. After an error
        `position` is needed.
        """
        cursor = self._cursors[rank]
        assert not cursor.out, f"EST {rank} has not finished its batch"
        self._sync_attributes(cursor.epoch)
        self._generator.restore(cursor.generator)
        if cursor.base_seed is None:
            cursor.base_seed = self._generator.draw_base_seed()
            if self.num_workers > 0:
                # At this point stock forks its data workers from the rank's process.
                cursor.forked = self.registry.capture()
                cursor.news.update(
                    {FORKED + name.removeprefix(ITEM): item for name, item in cursor.forked.items()}
                )
        info = self._orders.batch(cursor.epoch, rank, cursor.batch)
        if self.num_workers == 0:
            with current.making_for(rank):
                batch = self._local.make(rank, info.index, cursor.batch)
            if self._pinner is not None:
                batch = self._pinner.pin(batch)
        else:
            batch = self._take(rank, cursor)
        cursor.out = True
        return batch, info

    def remakes(self, rank: int) -> bool:
        """True if `remake` can make EST `rank`'s current batch; not an epoch's first, which draws more."""
        return self.num_workers == 0 and self._local.remakes and self._cursors[rank].batch > 0

    def remake(self, rank: int, info: BatchInfo) -> Any:
        """Make the batch returned by `begin` again, from the current generators and registered items."""
        cursor = self._cursors[rank]
        assert cursor.out, f"EST {rank} has no batch"
        with current.making_for(rank):
            return self._local.make(rank, info.index, cursor.batch)

    def finish(self, rank: int) -> Parts:
        """Return the loader position and the used stream's states, after the batch from `begin`."""
        cursor = self._cursors[rank]
        assert cursor.out, f"EST {rank} has no batch to finish"
        cursor.out = False
        parts, cursor.news = cursor.news, {}
        if cursor.consumed is not None:
            stream = cursor.slot % self.num_workers
            # In full, so that no state of an older epoch remains in the context beside new ones.
            cursor.streams[stream] = {**(cursor.streams.get(stream) or cursor.forked), **cursor.consumed}
            parts.update(stream_parts(stream, cursor.streams[stream]))
            cursor.consumed = None
        cursor.batch += 1
        cursor.slot += 1
        last = cursor.batch == self.batches_per_epoch
        if self.num_workers == 0:
            parts.update(self._local.finish(rank, last=last))
        cursor.generator = self._generator.state()
        if cursor.generator is not None:
            parts[GENERATOR] = cursor.generator
        if last:
            self._end_epoch(cursor)
        parts[LOADER] = LoaderPosition(cursor.epoch, cursor.batch, cursor.base_seed).pack()
        return parts

    def _end_epoch(self, cursor: _Cursor) -> None:
        cursor.epoch += 1
        cursor.batch = cursor.slot = cursor.asked = 0
        cursor.ended.clear()
        if not self._persistent:  # else stock neither draws nor seeds again
            cursor.base_seed = None
            cursor.streams.clear()
            cursor.asked_streams.clear()

    # ------------------------------------------------------------------ from contexts

    def _cursor_of(self, context: EstContext, step: int) -> _Cursor:
        position = context.position
        epoch, step_in_epoch = divmod(step, self.steps_per_epoch)
        batch = step_in_epoch * self.accumulation_steps
        if context.step != step or (position.epoch, position.batch) != (epoch, batch):
            raise ContextError(
                f"the context of EST {context.virtual_rank} is of step {context.step}, epoch "
                f"{position.epoch}, batch {position.batch}; expected step {step}, epoch {epoch}, batch "
                f"{batch}",
                hint="dataset, batch size and number of ESTs must be the same as at the start of the job",
                virtual_rank=context.virtual_rank,
                step=step,
            )
        if batch > 0 and position.base_seed is None:
            raise ContextError(
                f"the context of EST {context.virtual_rank} is in the middle of an epoch without base_seed",
                virtual_rank=context.virtual_rank,
                step=step,
            )
        cursor = _Cursor(epoch, batch, batch, position.base_seed, {})
        cursor.generator = context.parts.get(GENERATOR, self._generator.initial)
        cursor.forked = {
            ITEM + name.removeprefix(FORKED): item
            for name, item in context.parts.items()
            if name.startswith(FORKED)
        }
        if self.num_workers > 0:
            self._add_streams(cursor, context)
        cursor.asked = cursor.slot
        return cursor

    def _add_streams(self, cursor: _Cursor, context: EstContext) -> None:
        """Read the states of streams used in this epoch, and which streams have ended."""
        states = {stream: context.stream(stream) for stream in range(self.num_workers)}
        for stream, parts in states.items():
            ended = parts.pop(ENDED, None)
            if ended is not None and _ENDED.unpack(ended)[0] == cursor.epoch and cursor.batch > 0:
                cursor.ended[stream] = _ENDED.unpack(ended)[1]
        cursor.slot = self._slot_of(cursor)
        for stream in range(min(self.num_workers, self._slots_used(cursor))):
            if cursor.ended.get(stream) == 0:
                continue
            if not states[stream]:
                raise ContextError(
                    f"the context of EST {context.virtual_rank} has no states of data-worker stream {stream}",
                    hint="the job started with a different num_workers",
                    virtual_rank=context.virtual_rank,
                    stream=stream,
                )
            cursor.streams[stream] = states[stream]
            if self._iterable and ITERATOR not in states[stream] and not self._replay_said:
                self._replay_said = True
                _log.warning(
                    "the IterableDataset has no states: after a ring change its epoch is repeated from "
                    "the start; give it state_dict and load_state_dict to avoid that"
                )

    def _slot_of(self, cursor: _Cursor) -> int:
        """Return the slot of batch number `cursor.batch`."""
        if not cursor.ended:
            return cursor.batch
        slot = batches = 0
        while batches < cursor.batch:
            batches += self._lives(cursor, slot)
            slot += 1
        return slot

    def _lives(self, cursor: _Cursor, slot: int) -> bool:
        """True if the slot's stream has not ended before it."""
        ended = cursor.ended.get(slot % self.num_workers)
        return ended is None or slot // self.num_workers < ended

    def _slots_used(self, cursor: _Cursor) -> int:
        """Return the number of slots of which the streams have consumed batches since they were seeded."""
        if self._persistent and cursor.epoch > 0:
            return self.batches_per_epoch
        return cursor.slot

    def _sync_attributes(self, epoch: int) -> None:
        """Send changes of the dataset since the last epoch, which stock's newly forked workers would see."""
        if epoch == self._attributes_epoch or self._attributes is None or self._persistent:
            return
        self._attributes_epoch = epoch
        changed = self._attributes.changes()
        if not changed:
            return
        self._local.change_attributes(changed)
        if self.num_workers == 0:
            return
        self._pool.new_session()
        self._pool.change_attributes(AttributeChange(changed))
        for cursor in self._cursors.values():
            # Batches made in advance have the old attributes: discard them and request them again.
            cursor.asked = cursor.slot + cursor.out
            cursor.asked_streams.clear()
        self._ask_ahead()

    # ------------------------------------------------------------------ data workers

    def _ask_ahead(self) -> None:
        """Request batches for all ESTs, the soonest needed first."""
        if self.num_workers == 0:
            return
        # Round by round over the ESTs, so that the batches needed first are made first.
        for ahead in range(1, self._ahead() + 1):
            for rank in self._cursors:
                self._ask(rank, ahead)

    def _ahead(self) -> int:
        """Return the number of batches made in advance for one EST.

        As many as in stock for a single EST. Several share stock's number, prefetch_factor * W, but every EST
        has at least one for each stream, so that all data workers are busy.
        """
        return max(self.num_workers, self._prefetch_factor * self.num_workers // max(1, len(self._cursors)))

    def _ask(self, rank: int, ahead: int) -> None:
        """Request batches of EST `rank` until `ahead` are pending beyond the current one."""
        cursor = self._cursors[rank]
        if cursor.base_seed is None or len(cursor.ended) == self.num_workers:
            return
        end = self.batches_per_epoch if cursor.end is None else cursor.end
        wanted = min(ahead, end - cursor.batch - cursor.out)
        asked = sum(self._lives(cursor, slot) for slot in range(cursor.slot + cursor.out, cursor.asked))
        while asked < wanted:
            slot = cursor.asked
            cursor.asked += 1
            if self._lives(cursor, slot):
                self._submit(rank, cursor, slot)
                asked += 1

    def _submit(self, rank: int, cursor: _Cursor, slot: int) -> None:
        stream = slot % self.num_workers
        follows = stream in cursor.asked_streams
        cursor.asked_streams.add(stream)
        assert cursor.base_seed is not None
        task = StreamTask(
            session=self._pool.session,
            rank=rank,
            batch=slot,
            index=self._orders.index(cursor.epoch, rank, slot),
            base_seed=cursor.base_seed,
            follows=follows,
            start=None if follows else cursor.streams.get(stream),
            forked={} if follows else cursor.forked,
            made=slot // self.num_workers,
        )
        self._pool.submit(stream, task)

    def _receive(self, message: Message) -> Answer:
        return message if self._pinner is None else self._pinner.take_over(message)

    def _take(self, rank: int, cursor: _Cursor) -> Any:
        while True:
            if len(cursor.ended) == self.num_workers:
                raise ended_early(cursor.batch, self.batches_per_epoch)
            self._ask(rank, self._ahead())
            if not self._lives(cursor, cursor.slot):
                cursor.slot += 1
                continue
            stream = cursor.slot % self.num_workers
            message = self._pool.take(stream, rank, cursor.slot, self._timeout_seconds)
            batch, cursor.consumed = message.load()
            if isinstance(batch, ExceptionWrapper):
                batch.reraise()
            if not isinstance(batch, StreamEnd):
                break
            self._note_end(rank, cursor, stream)
        cursor.out = True
        self._ask(rank, self._ahead())
        return batch

    def _note_end(self, rank: int, cursor: _Cursor, stream: int) -> None:
        """Note that a stream of an IterableDataset has ended: the others continue without it."""
        count = cursor.slot // self.num_workers
        cursor.ended[stream] = count
        cursor.consumed = None
        cursor.news.update(stream_parts(stream, {ENDED: _ENDED.pack(cursor.epoch, count)}))
        for slot in range(cursor.slot + self.num_workers, cursor.asked, self.num_workers):
            self._pool.discard(rank, slot)

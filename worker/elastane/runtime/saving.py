"""Checkpoints of a worker: which one is loaded, and saving in the background."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

import structlog

from elastane.state.checkpoint import (
    LoadedCheckpoint,
    ShardInfo,
    Snapshot,
    VerifiedCheckpoint,
    load_newest,
    take_snapshot,
    verify_newest,
    write_manifest,
    write_shard,
)
from elastane.state.codec import Exported
from elastane.state.train_state import TrainState
from elastane.state.unit_shard import UnitSnapshot
from elastane_common.errors import ElastaneError
from elastane_proto.contexts import Parts
from elastane_proto.v1 import ring_pb2

_log = structlog.get_logger(__name__)


def restore_newest(message: ring_pb2.Load, state: TrainState, *, num_ests: int) -> LoadedCheckpoint | None:
    """Load the newest usable checkpoint into `state`; None, with `state` unchanged, if there is none."""
    url = message.checkpoint_url
    step_max = message.step_max if message.HasField("step_max") else None
    doubts = [(doubt.step_max, doubt.generation_max) for doubt in message.doubts]
    checkpoint = load_newest(url, num_ests=num_ests, step_max=step_max, doubts=doubts) if url else None
    if checkpoint is not None:
        state.load(checkpoint.exported)
    return checkpoint


def verify_for(message: ring_pb2.Load, *, num_ests: int) -> VerifiedCheckpoint | None:
    """Find the newest usable checkpoint as the leader of a pipeline's ring, holding no tensors.

    None if there is none. Each member then reads its units of it: `unit_checkpoint.load_units`.
    """
    url = message.checkpoint_url
    step_max = message.step_max if message.HasField("step_max") else None
    doubts = [(doubt.step_max, doubt.generation_max) for doubt in message.doubts]
    return verify_newest(url, num_ests=num_ests, step_max=step_max, doubts=doubts) if url else None


class CheckpointSaver:
    """Writes shards and manifests in a background thread.

    report: receives a Saved for each, errors included.
    """

    def __init__(self, report: Callable[[ring_pb2.Saved], None]) -> None:
        self._report = report
        self._jobs: queue.SimpleQueue[Callable[[], ring_pb2.Saved] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="elastane-saver", daemon=True)
        self._thread.start()

    def write_shard(
        self,
        message: ring_pb2.Checkpoint,
        exported: Exported,
        *,
        contexts: dict[int, Parts],
        ready_order: list[int],
    ) -> None:
        """Copy this worker's stripe now, and write it in the background."""
        snapshot = take_snapshot(
            exported,
            shard=message.shard,
            shards=message.shards,
            step=message.step,
            contexts=contexts,
            ready_order=ready_order,
        )
        self.write_snapshot(message, snapshot)

    def write_snapshot(self, message: ring_pb2.Checkpoint, snapshot: Snapshot | UnitSnapshot) -> None:
        """Write a copy of this worker's part in the background.

        A pipeline's worker takes it with `unit_checkpoint.take_unit_snapshot`, of the units that its plan has
        it save (`unit_transfers.saved_by`).
        """

        def job() -> ring_pb2.Saved:
            info = write_shard(message.url, message.checkpoint, message.shard, message.shards, snapshot)
            return ring_pb2.Saved(file=info.file, sha256=info.sha256, bytes=info.bytes)

        self._jobs.put(self._guard(message, job))

    def write_manifest(self, message: ring_pb2.Checkpoint, *, num_ests: int) -> None:
        """Complete the checkpoint as the leader, once every shard is written."""

        def job() -> ring_pb2.Saved:
            write_manifest(
                message.url,
                message.checkpoint,
                step=message.step,
                num_ests=num_ests,
                entries=[ShardInfo(e.shard, e.file, e.sha256, e.bytes) for e in message.manifest],
                keep=message.keep,
            )
            return ring_pb2.Saved(complete=True)

        self._jobs.put(self._guard(message, job))

    def close(self, wait_seconds: float | None = None) -> None:
        """Finish what is queued, then end the thread; give up after `wait_seconds` (None: never)."""
        self._jobs.put(None)
        self._thread.join(wait_seconds)

    def _guard(
        self, message: ring_pb2.Checkpoint, job: Callable[[], ring_pb2.Saved]
    ) -> Callable[[], ring_pb2.Saved]:
        def guarded() -> ring_pb2.Saved:
            try:
                saved = job()
            except (OSError, ElastaneError) as error:
                # A failed checkpoint must not end training; the master reports it.
                _log.warning("checkpoint failed", checkpoint=message.checkpoint, error=str(error))
                saved = ring_pb2.Saved(error=str(error) or type(error).__name__)
            saved.checkpoint, saved.step, saved.shard = message.checkpoint, message.step, message.shard
            return saved

        return guarded

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._report(job())

"""The save protocol: shards of all members, then the leader's manifest, then the checkpoint is valid.

  Prepared(s).then_checkpoint --> Saved(shard i) from each member --> Checkpoint(manifest) to the leader
  --> Saved(complete)

Training continues meanwhile. An error, a lost member or a ring change ends a checkpoint; if it was requested,
the next attempt takes its place. Weights never pass through the master: it only keeps names.
"""

from __future__ import annotations

import hashlib
from typing import Literal

from elastane_master.decisions import cost, sentinel
from elastane_master.decisions.decision_context import DecisionContext
from elastane_master.decisions.effects import Checkpoint, ManifestEntry
from elastane_master.decisions.events import Rejection, SavedReported
from elastane_master.decisions.state import CheckpointInFlight, FailedCheckpoint, JobState, SavedCheckpoint
from elastane_proto.history import events as history

LISTED_MAX = 20
RETRY_SECONDS = 5.0
"""Delay before the next attempt at a checkpoint that must be saved before the ring ends."""


def due_reason(state: JobState, step: int) -> str:
    """Return the reason for a checkpoint at the start of `step`; empty if none is due."""
    book, interval = state.checkpoints, state.settings.checkpoint_interval_steps
    if not state.settings.checkpoint_url or book.in_flight is not None or book.saved_step == step:
        return ""
    if book.wanted:
        return "asked for by an operator"
    if interval and step % interval == 0:
        return f"every {interval} steps"
    return ""


def begin(ctx: DecisionContext, step: int, reason: str, *, closing: bool = False) -> None:
    """Start a checkpoint: members save it when they have applied the step before `step`."""
    state, book = ctx.state, ctx.state.checkpoints
    workers = tuple(record.worker for record in state.active_members())
    name = f"step-{step:012d}-generation-{state.ring.generation}"
    book.in_flight = CheckpointInFlight(name, step, workers, ctx.now, book.wanted, closing)
    book.wanted = ()
    cost.checkpointed(state, step)
    ctx.touch()
    ctx.note(history.CheckpointRequested(name, step, len(workers), reason))


def message_for(state: JobState, worker: str, step: int) -> Checkpoint | None:
    """Return the Checkpoint message for a member at the boundary before `step`, if one is taken there."""
    flight = state.checkpoints.in_flight
    if flight is None or flight.step != step or worker not in flight.workers:
        return None
    return _message(state, flight, flight.workers.index(worker))


def report(ctx: DecisionContext, event: SavedReported) -> Literal["", "saved", "failed"]:
    """Handle a member's Saved; return the outcome of the checkpoint, empty while it is being written.

    Raises Rejection if the member reports another member's shard.
    """
    book = ctx.state.checkpoints
    flight = book.in_flight
    if flight is None or flight.checkpoint != event.checkpoint or event.worker not in flight.workers:
        return ""  # of a checkpoint that was given up
    shard = flight.workers.index(event.worker)
    if event.shard != shard and not event.complete:
        raise Rejection(
            "invalid_argument",
            f"{event.worker} reports shard {event.shard} of {event.checkpoint}, but writes shard {shard}",
            shard=event.shard,
            expected=shard,
        )
    if event.error:
        ctx.touch()
        give_up(ctx, f"{event.worker} could not write it: {event.error}", again=False)
        return "failed"
    if event.complete:
        if shard != 0 or len(flight.files) < len(flight.workers):
            raise Rejection(
                "invalid_argument", f"{event.checkpoint} cannot be complete yet", worker=event.worker
            )
        ctx.touch()
        _complete(ctx, flight)
        return "saved"
    if shard not in flight.files:
        ctx.touch()
        flight.files[shard] = ManifestEntry(shard, event.file, event.sha256, event.bytes)
        if len(flight.files) == len(flight.workers):
            _send_manifest(ctx, flight)
    return ""


def give_up(ctx: DecisionContext, reason: str, *, again: bool) -> None:
    """End the checkpoint in flight, if any. again: its requests pass to the next one instead of failing."""
    book = ctx.state.checkpoints
    flight, book.in_flight = book.in_flight, None
    if flight is None:
        return
    ctx.touch()
    if again:
        book.wanted = (*flight.requests, *book.wanted)
    else:
        _failed(ctx, flight.checkpoint, flight.step, reason, flight.requests)
        if flight.closing:
            book.not_before = ctx.now + RETRY_SECONDS
    ctx.note(history.CheckpointFailed(flight.checkpoint, flight.step, again, reason))


def refuse_wanted(ctx: DecisionContext, reason: str) -> None:
    """Fail requests for checkpoints that were not begun: the job is over."""
    book = ctx.state.checkpoints
    if book.wanted:
        _failed(ctx, "", ctx.state.steps.committed, reason, book.wanted)
        book.wanted = ()


def loaded(ctx: DecisionContext, checkpoint: str, step: int, rejected: tuple[str, ...]) -> None:
    """Record that the leader loaded `checkpoint` (empty: the initial state) and found `rejected` unusable."""
    book = ctx.state.checkpoints
    for what in rejected:
        ctx.note(history.CheckpointRejected(what))
    book.rejected = (*book.rejected, *rejected)[-LISTED_MAX:]
    # Later checkpoints belong to the history that this load abandons.
    book.saved = tuple(saved for saved in book.saved if checkpoint and saved.step <= step)
    book.saved_step = step if checkpoint else -1


def _send_manifest(ctx: DecisionContext, flight: CheckpointInFlight) -> None:
    manifest = tuple(flight.files[shard] for shard in sorted(flight.files))
    ctx.send(flight.workers[0], _message(ctx.state, flight, 0, manifest))


def _message(
    state: JobState, flight: CheckpointInFlight, shard: int, manifest: tuple[ManifestEntry, ...] = ()
) -> Checkpoint:
    url, kept = state.settings.checkpoint_url, sentinel.checkpoints_kept(state)
    return Checkpoint(flight.checkpoint, url, flight.step, shard, len(flight.workers), kept, manifest)


def _complete(ctx: DecisionContext, flight: CheckpointInFlight) -> None:
    book, settings = ctx.state.checkpoints, ctx.state.settings
    saved = SavedCheckpoint(flight.checkpoint, flight.step, settings.checkpoint_url, ctx.now, flight.requests)
    book.saved = (*book.saved, saved)[-sentinel.checkpoints_kept(ctx.state) :]
    book.saved_step = flight.step
    book.in_flight = None
    size = sum(entry.bytes for entry in flight.files.values())
    shards = [f"{entry.file} {entry.sha256}\n" for _, entry in sorted(flight.files.items())]
    # As `sha256sum` of the lines "FILE SHA256" of all shards, in their order.
    sha256 = hashlib.sha256("".join(shards).encode()).hexdigest()
    ctx.note(history.CheckpointSaved(flight.checkpoint, flight.step, size, sha256, len(flight.workers)))


def _failed(ctx: DecisionContext, checkpoint: str, step: int, error: str, requests: tuple[str, ...]) -> None:
    book = ctx.state.checkpoints
    book.failed = (*book.failed, FailedCheckpoint(checkpoint, step, error, requests))[-LISTED_MAX:]

"""Submission of runs: quota, dataset and code archive first, then the decision."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import cast

import msgspec

from elastane_master.decisions.events import Rejection
from elastane_master.decisions.runs.events import RunSubmitted, Submitted
from elastane_master.decisions.runs.requests import at_place, was_submitted
from elastane_master.decisions.runs.spec import RunSpec, check, owner_of
from elastane_master.runs.service import TrainingRuns
from elastane_master.security.quotas import require_runs
from elastane_master.servers import callers
from elastane_master.servers.translate_run import spec_of
from elastane_proto.v1 import training_pb2


async def submit(runs: TrainingRuns, spec: RunSpec, request_id: str, client_key: str = "") -> Submitted:
    """Resolve the dataset of a run, and submit it on its owner's account. Raises Rejection."""
    event = await _submission(runs, event_of(runs, spec, request_id, client_key))
    async with AsyncExitStack() as archives:
        await _hold_archive(runs, event, archives)
        if is_looked_up(spec):
            event_of(runs, spec, request_id, client_key)  # the quota counts what was submitted meanwhile
        return cast("Submitted", await runs.server.submit(event))


async def submit_many(
    runs: TrainingRuns, messages: Sequence[training_pb2.RunSpec], request_ids: Sequence[str]
) -> list[int]:
    """Submit all of these runs on their owners' accounts, or none; return their ids. Raises Rejection."""
    events: list[RunSubmitted] = []
    new: Counter[str] = Counter()
    async with AsyncExitStack() as archives:
        for place, (message, request_id) in enumerate(zip(messages, request_ids, strict=True)):
            try:
                event = await _submission(runs, event_of(runs, spec_of(message), request_id, ahead=new))
                await _hold_archive(runs, event, archives)
            except Rejection as refusal:
                raise at_place(refusal, place) from None
            events.append(event)
        server = runs.server
        server.require_taking()
        try:
            server.machine.require_acceptable(events)
        except Rejection as refusal:
            await server.refuse(refusal)
        # Nothing else is decided in between, so none of them is refused now.
        begun = [server.begin(event) for event in events]
        if (durable := begun[-1][1]) is not None:
            await asyncio.shield(durable)
    return [cast("Submitted", result).run_id for result, _ in begun]


def event_of(
    runs: TrainingRuns,
    spec: RunSpec,
    request_id: str,
    client_key: str = "",
    ahead: Counter[str] | None = None,
) -> RunSubmitted:
    """Return the event of a submission on its owner's account. Raises Rejection.

    ahead: number of new runs by owner that are submitted before it in the same call; this one is added.
    """
    server, caller = runs.server, callers.principal.get()
    owner = owner_of(spec, caller.name, caller.covers_owner(spec.owner))
    if not was_submitted(server.machine.state, owner, request_id, client_key):
        before = ahead[owner] if ahead is not None else 0
        if caller.quotas.runs_max:
            require_runs(caller, server.machine.index.alive(owner) + before)
        if ahead is not None:
            ahead[owner] += 1
    # A token speaks for the quota of its own name only.
    slots_max = caller.quotas.slots_max if owner == caller.name else None
    return RunSubmitted(spec, owner, request_id, client_key, slots_max=slots_max)


async def _submission(runs: TrainingRuns, event: RunSubmitted) -> RunSubmitted:
    """Return the event with its dataset resolved. Raises Rejection."""
    if event.spec.dataset is None:
        return event
    verdict, url, reason = await runs.datasets.resolve(event.spec.dataset)
    return msgspec.structs.replace(event, data=verdict, data_url=url, data_reason=reason)


def _archive(spec: RunSpec) -> str | None:
    """Return the digest of the spec's code archive."""
    return spec.code.archive_sha256 if spec.code is not None else None


def is_looked_up(spec: RunSpec) -> bool:
    """True if a submission waits for storage, or for the data service."""
    return spec.dataset is not None or _archive(spec) is not None


async def _hold_archive(runs: TrainingRuns, event: RunSubmitted, archives: AsyncExitStack) -> None:
    """Keep the code archive of a new run from being removed until `archives` is left. Raises Rejection."""
    spec, state = event.spec, runs.server.machine.state
    archive = _archive(spec)
    if archive is None or was_submitted(state, event.owner, event.request_id, event.client_key):
        return
    check(spec, state.settings.limits)
    await archives.enter_async_context(runs.code_archives.submitting(archive))

"""Bandwidth between the hosts of a pipeline's workers, as receivers measure it.

Kept is the median of what was last told of each pair of hosts, by whichever workers are on them. Of a pair
without any, `elastane_planner.links` says what is assumed. What is told is stored when it changes by more
than a tenth, and at most every ten seconds for each worker.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from elastane_master.decisions import unit_seconds
from elastane_master.decisions.decision_context import DecisionContext
from elastane_master.decisions.events import AppliedReported
from elastane_master.decisions.state import JobState, WorkerRecord
from elastane_planner.links import bandwidth_matrix, is_bandwidth

TOLD_KEPT = 5
"""Of each pair of hosts."""
PAIRS_MAX = 2048
"""Pairs of hosts that are kept of a job; further ones are not."""


def host_of(record: WorkerRecord) -> str:
    """Return by what a worker's links are known."""
    return record.host or record.worker


def measured(ctx: DecisionContext, record: WorkerRecord, event: AppliedReported) -> None:
    """Note what a worker has measured of the links to it, if it has changed, and not too often."""
    state, book = ctx.state, ctx.state.pipeline
    if not state.unit_count or not event.link_workers:
        return
    if record.links_at and ctx.now < record.links_at + unit_seconds.UPDATE_SECONDS:
        return
    changed: dict[str, float] = {}
    for worker, value in zip(event.link_workers, event.link_bytes_per_second, strict=False):
        before = record.links.get(worker)
        if worker not in state.workers or worker == record.worker or not is_bandwidth(value):
            continue
        if before is None or abs(value - before) > unit_seconds.CHANGE_FRACTION_MIN * before:
            changed[worker] = value
    if not changed:
        return
    ctx.touch()
    record.links_at = ctx.now
    record.links = {worker: one for worker, one in record.links.items() if worker in state.workers} | changed
    target = host_of(record)
    for worker, value in changed.items():
        to = book.links.setdefault(host_of(state.workers[worker]), {})
        if target in to or sum(map(len, book.links.values())) < PAIRS_MAX:
            to[target] = (*to.get(target, ()), value)[-TOLD_KEPT:]
    book.links = {source: to for source, to in book.links.items() if to}
    book.measurements += 1


def between(state: JobState, hosts: Iterable[str]) -> dict[tuple[str, str], float]:
    """Return the bandwidth that was measured between these hosts, by (source, target)."""
    wanted, known = set(hosts), state.pipeline.links
    return {
        (source, target): statistics.median(told)
        for source in sorted(wanted & known.keys())
        for target, told in known[source].items()
        if target in wanted
    }


def matrix(state: JobState, records: Iterable[WorkerRecord]) -> tuple[tuple[float, ...], ...]:
    """Return the bandwidth between workers as the planner gets it."""
    hosts = [host_of(record) for record in records]
    return bandwidth_matrix(hosts, between(state, hosts), exact=False)

"""Bandwidth between the hosts of a pipeline's workers, as receivers measure it.

For each pair of hosts the median of the last values is kept; a value is the median of the reports of workers
now on these hosts. A new value is recorded if it differs by more than a tenth from the kept one, at most
every ten seconds per worker. Planning is repeated only if its inputs have changed. Values of hosts that are
gone stay until the room is needed, as they may come back. `elastane_planner.links` fills in unknown pairs.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from elastane_master.decisions import unit_seconds
from elastane_master.decisions.decision_context import DecisionContext
from elastane_master.decisions.events import AppliedReported
from elastane_master.decisions.state import JobState, WorkerRecord
from elastane_planner.links import bandwidth_matrix, is_bandwidth, rounded

TOLD_KEPT = 5
"""Number of reports kept for each pair of hosts."""
PAIRS_MAX = 2048
"""Pairs of hosts that are kept of a job; further ones of present hosts are not."""


def host_of(record: WorkerRecord) -> str:
    """Return the host under which a worker's links are stored."""
    return record.host or record.worker


def measured(ctx: DecisionContext, record: WorkerRecord, event: AppliedReported) -> None:
    """Record a worker's measurements of links to it if they have changed, at limited frequency."""
    state, book = ctx.state, ctx.state.pipeline
    if not state.unit_count or not event.link_workers:
        return
    if record.links_at and ctx.now < record.links_at + unit_seconds.UPDATE_SECONDS:
        return
    told = {
        worker: value
        for worker, value in zip(event.link_workers, event.link_bytes_per_second, strict=False)
        if worker in state.workers and worker != record.worker and is_bandwidth(value)
    }
    changed = {worker: value for worker, value in told.items() if _differs(record.links.get(worker), value)}
    own = {worker: one for worker, one in record.links.items() if worker in state.workers} | changed
    target, sources = host_of(record), dict.fromkeys(host_of(state.workers[worker]) for worker in told)
    is_known = all(target in book.links.get(source, {}) for source in sources)
    known = book.links if is_known else _with_room(state)
    news: dict[str, float] = {}
    for source in sources:
        value, before = _value(state, record, own, source), known.get(source, {}).get(target, ())
        has_room = before or sum(map(len, known.values())) + len(news) < PAIRS_MAX
        if has_room and _differs(statistics.median(before) if before else None, value):
            news[source] = value
    if not changed and not news:
        return
    ctx.touch()
    record.links_at, record.links, book.links = ctx.now, own, known
    is_other = False
    for source, value in news.items():
        before = known.get(source, {}).get(target, ())
        after = known.setdefault(source, {})[target] = (*before, value)[-TOLD_KEPT:]
        is_other |= _planned_with(after) != _planned_with(before)
    book.measurements += is_other


def _differs(known: float | None, value: float) -> bool:
    return known is None or abs(value - known) > unit_seconds.CHANGE_FRACTION_MIN * known


def _value(state: JobState, record: WorkerRecord, own: dict[str, float], source: str) -> float:
    """Return the bandwidth from a host to that of `record`, by its workers' reports. own: of `record`."""
    target, others = host_of(record), [one for one in state.workers.values() if one is not record]
    links = [own, *(one.links for one in others if host_of(one) == target)]
    found = (
        value
        for told in links
        for worker, value in told.items()
        if worker in state.workers and host_of(state.workers[worker]) == source
    )
    return statistics.median(found)


def _with_room(state: JobState) -> dict[str, dict[str, tuple[float, ...]]]:
    """Return the values of all pairs of hosts; without room for another pair, only of present hosts."""
    known = state.pipeline.links
    if sum(map(len, known.values())) < PAIRS_MAX:
        return known
    present = {host_of(one) for one in state.workers.values()}
    kept = {
        source: {target: told for target, told in to.items() if target in present}
        for source, to in known.items()
        if source in present
    }
    return {source: to for source, to in kept.items() if to}


def _planned_with(told: tuple[float, ...]) -> float:
    return rounded(statistics.median(told)) if told else 0.0


def between(state: JobState, hosts: Iterable[str]) -> dict[tuple[str, str], float]:
    """Return the measured bandwidth between these hosts, by (source, target)."""
    wanted, known = set(hosts), state.pipeline.links
    return {
        (source, target): statistics.median(told)
        for source in sorted(wanted & known.keys())
        for target, told in known[source].items()
        if target in wanted
    }


def matrix(state: JobState, records: Iterable[WorkerRecord]) -> tuple[tuple[float, ...], ...]:
    """Return the bandwidth matrix of workers for the planner."""
    hosts = [host_of(record) for record in records]
    return bandwidth_matrix(hosts, between(state, hosts), exact=False)

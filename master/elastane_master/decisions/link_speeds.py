"""Bandwidth between the hosts of a pipeline's workers, as receivers measure it.

Kept of each pair of hosts is the median of the last values; a value is what the workers that are on them now
say, their median if they differ. Another one is taken once it is more than a tenth away from what is kept,
and at most every ten seconds from each worker. Another plan is looked for only if it would be made with other
figures. What is kept of hosts that are gone stays until the room is needed: they may come back. Of a pair
without any value, `elastane_planner.links` says what is assumed.
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
"""Of each pair of hosts."""
PAIRS_MAX = 2048
"""Pairs of hosts that are kept of a job; further ones of present hosts are not."""


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
    """Return the bandwidth from a host to that of `record`, as the workers on it say. own: of `record`."""
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
    """Return what is known of pairs of hosts; if there is no room for another pair, of present hosts."""
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

"""As many pods as are wanted, and which of them.

A pod's index is its place: places 0 to workers.max - 1 are filled, lowest first, and a place is taken as long
as any pod bears its name. So two operators that look at the same time make the same pods, and the second
of them is told that they are there.
"""

from __future__ import annotations

from elastane_operator.decisions import ends
from elastane_operator.decisions.actions import CreatePod, DeletePod
from elastane_operator.decisions.pods import PodView, pod_name
from elastane_operator.decisions.turn import Turn


def fit(turn: Turn, wanted: int) -> None:
    """Makes what is missing, releases what is too many, clears away what has ended."""
    _call_off(turn, wanted)
    for pod in turn.pods:
        known = turn.ended.get(pod.uid)
        if pod.ended and pod.deleted is None and known is not None:
            turn.act(
                DeletePod(pod.name, pod.uid, f"{pod.name} has ended ({known.outcome}); its place is cleared")
            )
    live = [pod for pod in turn.pods if pod.live]
    if len(live) > wanted:
        victims = sorted(live, key=lambda pod: _worth(turn, pod))[: len(live) - wanted]
        reason = f"scaled in: {wanted} workers are wanted, {len(live)} are there"
        turn.release(victims, reason)
    elif len(live) < wanted:
        _fill(turn, live, wanted)


def attends(turn: Turn, pod: PodView, *states: str) -> bool:
    """Whether the worker of a pod attends at the master, in one of the states."""
    job = turn.job
    if job is None:
        return False
    # The agent calls its workers by the host's name, which is the pod's.
    return any(
        worker.worker.startswith(f"{pod.name}-") and (not states or worker.state in states)
        for worker in job.workers
    )


def _fill(turn: Turn, live: list[PodView], wanted: int) -> None:
    waiting = ends.waiting_indexes(turn)
    # Also pods that somebody else made bear names.
    taken = {pod.name for pod in turn.observed.pods}
    mine = {pod.index for pod in live}
    places = [index for index in range(wanted) if index not in mine][: wanted - len(live)]
    reason = f"{wanted} workers are wanted, {len(live)} are there"
    for index in places:
        if index not in waiting and pod_name(turn.identity.name, index) not in taken:
            turn.act(CreatePod(index, reason))


def _call_off(turn: Turn, wanted: int) -> None:
    """Pods that were to be released and are still at work may stay, if they are wanted again."""
    live = {pod.uid for pod in turn.pods if pod.live}
    marked = [each for each in turn.status.ended if each.outcome == "released" and each.uid in live]
    if marked and len(live) <= wanted:
        kept = tuple(each for each in turn.status.ended if each not in marked)
        turn.set(ended=kept)


def _worth(turn: Turn, pod: PodView) -> tuple[bool, bool, bool, bool, int]:
    """The smaller, the sooner it goes: what was to go before, what does not train, the newest."""
    return (
        pod.uid not in turn.ended,
        pod.scheduled,
        pod.phase == "Running",
        not attends(turn, pod, "standby"),
        -pod.index,
    )

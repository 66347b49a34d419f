"""Whatever happened, and wherever the operator was killed: looking again and again ends where it should.

Random worlds: pods end in every way, nodes go, the master goes and comes, the spec changes, and the operator
is killed between any two of its writes. Afterwards the world is left alone, and must come to rest with just
the pods that are wanted, every end counted once, and nothing written any more.
"""

from __future__ import annotations

import contextlib
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from elastane_operator.decisions.spec import ParameterServers, Workers
from elastane_operator.decisions.status import FINISHED
from unit.deploy.elastic_jobs import Cluster, Killed

INDEX = st.integers(0, 5)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("kill"), st.integers(0, 6)),
        st.tuples(st.just("look"), st.just(0)),
        st.tuples(st.just("kubelet"), st.just(0)),
        st.tuples(st.just("preempt"), INDEX),
        st.tuples(st.just("evict"), INDEX),
        st.tuples(st.just("retryable"), INDEX),
        st.tuples(st.just("left"), INDEX),
        st.tuples(st.just("node_gone"), INDEX),
        st.tuples(st.just("scale"), st.integers(1, 6)),
        st.tuples(st.just("suspend"), st.integers(0, 1)),
        st.tuples(st.just("master"), st.integers(0, 1)),
        st.tuples(st.just("wait"), st.integers(1, 40)),
        st.tuples(st.just("server_gone"), st.integers(0, 2)),
        st.tuples(st.just("server_evicted"), st.integers(0, 2)),
        st.tuples(st.just("servers"), st.integers(1, 3)),
    ),
    max_size=40,
)


class Story:
    """A cluster to which things happen, and what the book should say of them."""

    def __init__(self) -> None:
        checkpoint = {"url": "s3://b/d", "timeoutSeconds": 20}
        self.cluster = Cluster(restartBudget=1000, checkpoint=checkpoint, parameterServers={"count": 2})
        self.failed: set[str] = set()
        self.preempted: set[str] = set()
        # While workers are being sent away, and not looked at yet: counted if they are wanted again before.
        self.perhaps_failed: set[str] = set()
        self.perhaps_preempted: set[str] = set()

    def happen(self, what: str, number: int) -> None:
        cluster = self.cluster
        name = f"digits-worker-{number}"
        there = cluster.pods.get(name)
        running = there is not None and there.live and there.scheduled
        # While workers are being sent away their ends are no failures, and the book leaves them out.
        counted = running and not cluster.spec.suspend and self._trains()
        if self._leaving() and (what == "look" or (what == "kill" and number > 0)):
            self.perhaps_failed.clear()  # the book has them as released, from this look on
            self.perhaps_preempted.clear()
        if what == "kill":
            with contextlib.suppress(Killed):
                cluster.look(until=number)
        elif what == "look":
            cluster.look()
        elif what == "kubelet":
            cluster.kubelet()
        elif what == "scale":
            cluster.set_spec(workers=Workers(number))
        elif what == "suspend":
            cluster.set_spec(suspend=bool(number))
        elif what == "master":
            cluster.reachable = bool(number)
        elif what == "wait":
            cluster.wait(number)
        elif what == "server_gone":
            cluster.pods.pop(f"digits-ps-{number}", None)
        elif what == "server_evicted" and f"digits-ps-{number}" in cluster.pods:
            cluster.change(f"digits-ps-{number}", phase="Failed", reason="Evicted", ready=False)
        elif what == "servers":
            cluster.set_spec(parameter_servers=ParameterServers(number))
        elif running and there is not None and there.uid not in self._booked():
            if what == "preempt":
                cluster.change(name, deleted=cluster.now)
            elif what == "evict":
                cluster.change(name, phase="Failed", reason="Evicted", ready=False)
            elif what == "retryable":
                cluster.fail(number, 200)
            elif what == "left":
                cluster.fail(number, 0)
            elif what == "node_gone":
                del cluster.pods[name]  # nobody saw it go: it is missed at the next look
            if what in ("preempt", "evict", "node_gone"):
                (self.preempted if counted else self.perhaps_preempted).add(there.uid)
            elif what == "retryable":
                (self.failed if counted else self.perhaps_failed).add(there.uid)

    def _leaving(self) -> bool:
        """Whether a look sends the workers away."""
        job = self.cluster.job if self.cluster.reachable else None
        return self.cluster.spec.suspend or (job is not None and job.phase == "suspended")

    def _trains(self) -> bool:
        job = self.cluster.job
        return job is not None and job.phase in ("waiting", "running")

    def _booked(self) -> set[str]:
        return {each.uid for each in self.cluster.read().ended}


@settings(max_examples=150, deadline=None)
@given(STEPS, st.booleans())
@example([("suspend", 1), ("preempt", 0), ("suspend", 0)], True)
def test_from_any_history_it_comes_to_rest_with_the_pods_that_are_wanted(
    steps: list[tuple[str, int]], is_old: bool
) -> None:
    story = Story()
    cluster = story.cluster
    if is_old:
        cluster.settle()
    widest = cluster.spec.workers.max
    for what, number in steps:
        story.happen(what, number)
        widest = max(widest, cluster.spec.workers.max)
        assert len(cluster.live()) <= widest, "more pods than were ever wanted"
    cluster.reachable = True
    status = cluster.settle()
    for _ in range(12):  # backoffs, checkpoints and the like run out
        cluster.wait(301)
        status = cluster.settle()
    assert status.phase not in FINISHED, status.reason
    if cluster.spec.suspend:
        assert status.phase == "Suspended" and not cluster.pods
    else:
        assert status.phase == "Running" and len(cluster.live()) == cluster.spec.workers.max
        assert cluster.spec.parameter_servers is not None
        assert len(cluster.live("ps")) == len(cluster.pods) - len(cluster.live())
        assert len(cluster.live("ps")) == cluster.spec.parameter_servers.count
        assert cluster.job is not None and cluster.job.workers_max == cluster.spec.workers.max
    assert status.restarts <= len(story.failed | story.perhaps_failed)
    assert status.preemptions <= len(story.preempted | story.perhaps_preempted)
    assert cluster.decide().actions == () and cluster.decide().status == status
    assert cluster.asked.count("Create") <= 1


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["preempt", "retryable", "evict", "node_gone"]), INDEX), max_size=8),
    st.data(),
)
def test_every_end_is_counted_exactly_once_wherever_the_operator_is_killed(
    ends: list[tuple[str, int]], data: st.DataObject
) -> None:
    story = Story()
    cluster = story.cluster
    cluster.set_spec(workers=Workers(6))
    cluster.settle()
    for what, number in ends:
        story.happen(what, number)
        for _ in range(data.draw(st.integers(0, 4))):
            with contextlib.suppress(Killed):
                cluster.look(until=data.draw(st.integers(0, 5)))
        cluster.look()
        cluster.wait(700)
        cluster.settle()
    status = cluster.settle()
    assert (status.restarts, status.preemptions) == (len(story.failed), len(story.preempted))
    assert cluster.indexes() == [0, 1, 2, 3, 4, 5] and cluster.most_live <= 6


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["succeeded", "failed", "cancelled", "max_wait_exceeded", "permanent"]),
    STEPS,
    st.booleans(),
)
def test_a_finished_job_is_never_started_again(
    end: str, steps: list[tuple[str, int]], is_known: bool
) -> None:
    story = Story()
    cluster = story.cluster
    cluster.spec = Cluster(ttlSecondsAfterFinished=60, restartBudget=1000).spec
    cluster.settle()
    if end == "permanent":
        cluster.fail(0, 1)
    else:
        cluster.at_master(phase=end, workers=())
    cluster.look()
    phase = cluster.read().phase
    assert phase in FINISHED
    made = cluster.made
    if not is_known:
        cluster.job = None  # a master of its own has gone, state and all
    for what, number in steps:
        if what not in ("master",):
            story.happen(what, number)
    cluster.wait(100)
    cluster.settle()
    cluster.wait(100)
    status = cluster.settle()
    assert status.phase == phase and cluster.made == made and not cluster.pods


@settings(max_examples=60, deadline=None)
@given(STEPS, st.sampled_from(["Save", "Skip"]), st.booleans(), st.lists(st.integers(0, 5), max_size=6))
def test_a_deleted_job_goes_within_its_time_and_leaves_no_pods(
    steps: list[tuple[str, int]], on_delete: Any, is_reachable: bool, kills: list[int]
) -> None:
    story = Story()
    cluster = story.cluster
    cluster.spec = Cluster(checkpoint={"url": "s3://b/d", "onDelete": on_delete, "timeoutSeconds": 20}).spec
    for what, number in steps:
        story.happen(what, number)
    cluster.look()
    cluster.deleted = cluster.now
    cluster.reachable = is_reachable
    for writes in kills:
        if not cluster.gone:
            with contextlib.suppress(Killed):
                cluster.look(until=writes)
    for _ in range(30):
        cluster.look()
        cluster.wait(1)
    assert cluster.gone and not cluster.live()

"""One trace for each change of the ring, over real OTLP: from the master and all workers of a real training.

The training is the matrix's, and its result is held against stock DDP of the same script, which is untraced.
"""

from __future__ import annotations

import signal
import threading
from collections import defaultdict
from collections.abc import Iterator
from concurrent import futures
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.common.v1 import common_pb2
from test_matrix import SIZE, Config, Launch, reference, servers  # noqa: F401 - forked from torch

from elastane.agent.cluster import LocalCluster, local_cluster
from elastane.demo.compare import compare_runs
from elastane.runtime.rehearsal import Gate, Rehearsal
from elastane_proto.v1 import job_pb2

CONFIG = Config(3, "sgd", epochs=1)


@dataclass(frozen=True)
class Span:
    """One that arrived. service: "elastane-master" or "elastane-worker"; instance: of whom."""

    service: str
    instance: str
    name: str
    trace: bytes
    span: bytes
    parent: bytes
    begin: int
    end: int
    attributes: dict[str, Any]
    events: tuple[str, ...]


class Receiver(trace_service_pb2_grpc.TraceServiceServicer):
    """What a collector is to an exporter."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.spans: list[Span] = []

    def Export(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        with self._lock:
            for batch in request.resource_spans:
                source = plain(batch.resource.attributes)
                self.spans += [
                    Span(
                        source["service.name"],
                        source["service.instance.id"],
                        span.name,
                        span.trace_id,
                        span.span_id,
                        span.parent_span_id,
                        span.start_time_unix_nano,
                        span.end_time_unix_nano,
                        plain(span.attributes),
                        tuple(event.name for event in span.events),
                    )
                    for scope in batch.scope_spans
                    for span in scope.spans
                ]
        return trace_service_pb2.ExportTraceServiceResponse()


def plain(attributes: Any) -> dict[str, Any]:
    def value_of(value: common_pb2.AnyValue) -> Any:
        kind = value.WhichOneof("value")
        if kind == "array_value":
            return [value_of(one) for one in value.array_value.values]
        return getattr(value, kind)

    return {one.key: value_of(one.value) for one in attributes}


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    server = grpc.server(futures.ThreadPoolExecutor(4))
    found = Receiver()
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(found, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    yield found
    server.stop(None).wait()


def train(folder: Path) -> LocalCluster:
    """Two workers; in step 3 a third one comes, and in step 8 the leader dies."""
    settings = job_pb2.JobSettings(
        ests=CONFIG.ests, workers_min=2, workers_max=CONFIG.ests, audit_samples=True
    )
    settings.join_window.FromMilliseconds(1)  # it is over when the newcomer is seen to be there
    gates = folder / "gates"
    comes, dies = Gate(gates / "3"), Gate(gates / "8")
    environment = Rehearsal(gates=str(gates)).environment()
    with local_cluster(
        folder, settings, CONFIG.arguments, environment=environment, launch=Launch.now
    ) as cluster:
        for name in ("w0", "w1"):
            cluster.add_worker(name)
        cluster.wait_for_step(3)
        cluster.add_worker("w2")
        cluster.wait_for(lambda job: len(job.workers) == 3, what="the third at the master")
        comes.open()
        cluster.wait_for_step(8)
        cluster.workers["w0"].signal(signal.SIGKILL)
        cluster.wait_for(lambda job: len(job.workers) == 2, what="the death noticed")
        dies.open()
        cluster.wait_for_end()
        history = list(cluster.client.audit_log(cluster.job))
    stock = reference(CONFIG)
    result = compare_runs(cluster.reports, stock, history, ests=CONFIG.ests, dataset_size=SIZE)
    assert result.equal, result
    return cluster


def test_a_join_and_a_death_are_a_trace_each_and_the_bits_stay(receiver: Receiver, tmp_path: Path) -> None:
    cluster = train(tmp_path)
    spans = receiver.spans
    assert len({span.span for span in spans}) == len(spans)

    traces: dict[bytes, list[Span]] = defaultdict(list)
    for span in spans:
        traces[span.trace].append(span)
    roots = {span.attributes["elastane.ring.cause"]: span for span in spans if span.name == "ring change"}
    assert sorted(roots) == ["join", "loss", "start"] and len(traces) == 3, "no change in two traces"
    for cause, root in roots.items():
        assert root.service == "elastane-master" and root.parent == b""
        assert root.instance == cluster.addresses
        assert root.attributes["elastane.ring.outcome"] == "completed"
        assert root.attributes["elastane.job"] == cluster.job
        others = [span for span in traces[root.trace] if span is not root]
        assert {span.parent for span in others} == {root.span}, cause
        assert all(span.begin >= root.begin and span.end >= span.begin for span in others)
        parts = {span.name: span for span in others if span.service == "elastane-master"}
        expected = {"collect", "prepare", "resume"} - ({"collect"} if cause == "loss" else set())
        assert set(parts) == expected | ({"load"} if cause == "start" else set())
        assert all(span.end <= root.end for span in parts.values())
        generation = root.attributes["elastane.ring.generation"]
        for span in others:
            if span.service == "elastane-worker":
                assert span.attributes["elastane.worker"] == span.instance
                assert span.attributes["elastane.ring.generation"] == generation
                assert span.attributes["elastane.job"] == cluster.job
                assert span.name == "stop" or parts["prepare"].begin <= span.begin

    def told(cause: str) -> dict[str, dict[str, Span]]:
        """By worker and name."""
        found: dict[str, dict[str, Span]] = defaultdict(dict)
        for span in traces[roots[cause].trace]:
            if span.service == "elastane-worker":
                assert span.name not in found[span.instance]
                found[span.instance][span.name] = span
        return found

    join = told("join")
    assert roots["join"].attributes["elastane.ring.planned"] is True
    assert roots["join"].attributes["elastane.ring.members"] == ["w0", "w1", "w2"]
    assert roots["join"].attributes["elastane.ring.ests_moved"] == 2
    for donor in ("w0", "w1"):
        assert set(join[donor]) == {"stop", "form ring", "send state", "first step"}
    assert set(join["w2"]) == {"form ring", "receive state", "first step"}
    sent = [join[donor]["send state"].attributes["elastane.handover.bytes"] for donor in ("w0", "w1")]
    received = join["w2"]["receive state"].attributes["elastane.handover.bytes"]
    assert all(sent) and sum(sent) == received

    loss = told("loss")
    assert roots["loss"].attributes["elastane.ring.planned"] is False
    assert "w0" in roots["loss"].attributes["elastane.ring.reason"]
    assert sorted(loss) == ["w1", "w2"]
    for survivor in loss:
        # The step that was in flight is done again: nothing is handed over.
        assert set(loss[survivor]) == {"stop", "form ring", "replay"}
        replay = loss[survivor]["replay"]
        assert replay.attributes["elastane.step"] == roots["loss"].attributes["elastane.step"]
    assert set(told("start")["w0"]) == {"load", "form ring", "send state", "first step"}

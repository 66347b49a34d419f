"""When spans are asked for, what is said where they cannot be had, and that they leave the bits alone."""

from __future__ import annotations

import logging
import random
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import structlog
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import patience
from elastane.runtime.change_spans import ChangeSpans
from elastane_proto import tracing
from elastane_proto.v1 import ring_pb2

PARENT = "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"


@pytest.fixture(autouse=True)
def _nothing_asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in (tracing.EXPORTER, tracing.DISABLED, *tracing.ENDPOINTS, *tracing.PROTOCOLS):
        monkeypatch.delenv(name, raising=False)
    yield


@pytest.mark.parametrize(
    ("environ", "exporter"),
    [
        ({}, ""),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4317"}, "otlp"),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4317"}, "otlp"),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://c:4317"}, ""),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, "otlp"),
        ({"OTEL_TRACES_EXPORTER": "console", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4317"}, "console"),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4317"}, ""),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4317", "OTEL_SDK_DISABLED": "true"}, ""),
        ({"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "otlp"),
    ],
)
def test_the_standards_variables_decide(environ: dict[str, str], exporter: str) -> None:
    assert tracing.wanted(environ) == tracing.Wanted(exporter)


@pytest.mark.parametrize(
    ("environ", "word"),
    [
        ({"OTEL_TRACES_EXPORTER": "zipkin"}, "zipkin"),
        ({"OTEL_TRACES_EXPORTER": "otlp,console"}, "otlp,console"),
        ({"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, "http/protobuf"),
    ],
)
def test_what_is_asked_for_and_not_there_is_said(environ: dict[str, str], word: str) -> None:
    asked = tracing.wanted(environ)
    assert not asked.exporter and word in asked.problem


def test_a_missing_package_is_named_and_everything_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "otlp")
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.grpc", None)
    with structlog.testing.capture_logs() as said:
        assert tracing.open_tracer("elastane-worker", "w0") is None
    assert [(line["event"], line["log_level"]) for line in said] == [("nothing is traced", "warning")]
    assert "pip install '.[tracing]' in the project's folder" in said[0]["problem"]


def test_a_value_that_the_library_cannot_read_is_said_and_everything_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "otlp")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "best")
    with structlog.testing.capture_logs() as said:
        assert tracing.open_tracer("elastane-worker", "w0") is None
    assert "cannot be set up" in said[0]["problem"]


def test_who_does_not_ask_imports_nothing_of_it() -> None:
    """redis-py, in the master, looks for OpenTelemetry's metrics by itself; spans and exporters are ours."""
    code = (
        "import sys\n"
        "from elastane_proto import tracing\n"
        "def loaded(): return [n for n in sys.modules if n.startswith('opentelemetry')]\n"
        "import elastane.runtime.elastic\n"
        "assert tracing.open_tracer('s', 'i') is None\n"
        "print(loaded())\n"
        "import elastane_master.app\n"
        "print([n for n in loaded() if '.exporter' in n or n.startswith('opentelemetry.sdk.trace')])"
    )
    done = patience.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["[]", "[]"], done.stderr


def test_neither_ids_nor_a_receiver_that_is_away_draw_from_the_scripts_generator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The library draws from `random` for both; a training would have other bits."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")
    failed = Failures()
    library = logging.getLogger("opentelemetry")
    library.addHandler(failed)
    random.seed(1)
    before = random.getstate()
    try:
        tracer = tracing.open_tracer("elastane-worker", "w0")
        assert tracer is not None
        root = tracer.begin("root", at_ns=tracing.now_ns(), attributes={"members": ["a", "b"]})
        tracer.emit("child", begin_ns=1, end_ns=2, parent=root.traceparent, attributes={})
        root.end(tracing.now_ns())
        assert failed.seen.wait(20), "the exporter has tried, and drawn the time until it tries again"
        tracer.close(0.1)
    finally:
        library.removeHandler(failed)
    assert random.getstate() == before
    assert tracing.is_traceparent(root.traceparent)


def test_spans_are_under_their_parent_and_no_secret_gets_out() -> None:
    kept, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    tracer = tracing.Tracer(provider)
    with provider.get_tracer("the script's").start_as_current_span("its own"):
        root = tracer.begin("root", at_ns=5, attributes={"reason": "no s3://me:hunter2@store/x"})
        root.event("ready", 6, {"reason": "password=hunter2"})
        tracer.emit("child", begin_ns=7, end_ns=6, parent=root.traceparent, attributes={"n": 1})
        tracer.emit("stray", begin_ns=7, end_ns=8, parent="", attributes={})
        root.end(9, {"token": "Bearer hunter2hunter2"})
    child, parent = kept.get_finished_spans()[:2]
    assert [one.name for one in kept.get_finished_spans()] == ["child", "root", "its own"]
    assert parent.parent is None and child.parent is not None
    assert (child.parent.span_id, child.context.trace_id) == (parent.context.span_id, parent.context.trace_id)
    assert (parent.start_time, parent.end_time, child.start_time, child.end_time) == (5, 9, 7, 7)
    assert "hunter2" not in parent.to_json() and parent.attributes is not None
    assert parent.attributes["reason"] == "no s3://me:***@store/x"


class Failures(logging.Handler):
    """Waits for what the exporter says of a receiver that is away: by then it has drawn its pause."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if "export" in record.getMessage():
            self.seen.set()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "00-0-0-01",
        "x",
        PARENT + "-1",
        PARENT.replace("00-", "01-"),
        PARENT.upper(),
        "00-" + "0" * 32 + PARENT[35:],
    ],
)
def test_what_names_no_span_is_none(text: str) -> None:
    assert tracing.is_traceparent(PARENT) and not tracing.is_traceparent(text)


# ---------------------------------------------------------------- what a worker tells


class Sink:
    """Spans as (name, seconds, parent, attributes)."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, float, str, dict[str, Any]]] = []
        self.closed = False

    def emit(self, name: str, *, begin_ns: int, end_ns: int, parent: str, attributes: Any) -> None:
        self.spans.append((name, (end_ns - begin_ns) / 1e9, parent, dict(attributes)))

    def close(self) -> None:
        self.closed = True


class Clock:
    now = 0

    def __call__(self) -> int:
        return self.now


def prepare(generation: int, parent: str = PARENT) -> ring_pb2.AttendResponse:
    return ring_pb2.AttendResponse(prepare=ring_pb2.Prepare(generation=generation, traceparent=parent))


def ready(generation: int) -> ring_pb2.AttendRequest:
    return ring_pb2.AttendRequest(ready=ring_pb2.Ready(generation=generation, applied_step=7))


def test_a_worker_tells_what_it_did_in_the_masters_trace() -> None:
    clock, sink = Clock(), Sink()
    spans = ChangeSpans("job", "w0", clock)
    spans.open(sink)
    spans.heard(prepare(2), in_ring=True)
    clock.now += 3 * 10**9
    spans.said([ring_pb2.AttendRequest(heartbeat=ring_pb2.Heartbeat()), ready(1), ready(2), ready(2)])
    spans.formed(2, 0.5, workers=3)
    spans.handed_over("send", 2, 0.25, size_bytes=10, donors=1, receivers=2)
    spans.applied(7, 9.0, replayed=True)  # before the ring trains: of the one before
    spans.entered(2)
    spans.applied(7, 1.5, replayed=True)
    spans.applied(8, 1.0, replayed=False)
    assert [(name, seconds, parent) for name, seconds, parent, _ in sink.spans] == [
        ("stop", 3.0, PARENT),
        ("form ring", 0.5, PARENT),
        ("send state", 0.25, PARENT),
        ("replay", 1.5, PARENT),
    ]
    named = {"elastane.job": "job", "elastane.worker": "w0", "elastane.ring.generation": 2}
    assert all(named.items() <= attributes.items() for *_, attributes in sink.spans)
    assert sink.spans[2][3]["elastane.handover.bytes"] == 10


def test_a_planned_change_comes_with_prepared_and_the_newest_parent_counts() -> None:
    sink = Sink()
    spans = ChangeSpans("job", "w0", Clock())
    spans.open(sink)
    planned = ring_pb2.Prepared(generation=2, step=4, then_prepare=prepare(3).prepare)
    spans.heard(ring_pb2.AttendResponse(prepared=planned), in_ring=True)
    spans.said([ready(3)])
    other = PARENT.replace("0123", "4567")
    spans.heard(ring_pb2.AttendResponse(go=ring_pb2.Go(generation=3, traceparent=other)), in_ring=True)
    spans.formed(3, 0.1, workers=1)
    assert [(name, parent) for name, _, parent, _ in sink.spans] == [("stop", PARENT), ("form ring", other)]


def test_without_a_trace_or_a_way_out_nothing_is_told() -> None:
    sink = Sink()
    spans = ChangeSpans("job", "w0", Clock())
    spans.heard(prepare(1), in_ring=True)  # not asked for
    spans.entered(1)
    spans.open(sink)
    spans.said([ready(1)])
    spans.applied(1, 1.0, replayed=False)
    spans.heard(prepare(2, ""), in_ring=True)  # the master does not trace
    spans.said([ready(2)])
    spans.formed(2, 0.1, workers=1)
    spans.heard(prepare(3), in_ring=False)  # a newcomer has nothing to stop
    spans.said([ready(3)])
    assert sink.spans == []
    spans.close()
    assert sink.closed
    spans.formed(3, 0.1, workers=1)
    assert sink.spans == []


def test_what_is_known_of_old_changes_is_bounded() -> None:
    spans = ChangeSpans("job", "w0", Clock())
    spans.open(Sink())
    for generation in range(1, 1000):
        spans.heard(prepare(generation), in_ring=True)
    assert max(len(spans._parents), len(spans._stopping)) <= 16

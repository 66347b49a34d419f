"""Receives spans over real OTLP, like a collector; environment variables point masters and workers to it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent import futures
from dataclasses import dataclass
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.common.v1 import common_pb2


@dataclass(frozen=True)
class Span:
    """A received span. service: "elastane-master" or "elastane-worker". instance: its sender."""

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
    """Receiver of an exporter's spans."""

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

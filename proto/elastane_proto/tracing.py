"""OpenTelemetry spans of masters and workers: configuration and export.

Tracing is enabled by the standard's variables (OTEL_TRACES_EXPORTER, OTEL_EXPORTER_OTLP_ENDPOINT, ...);
without them nothing of OpenTelemetry is imported. If tracing is requested but impossible, one warning is
logged and the process continues without it: the variables may be set for a whole cluster, and a training is
worth more than its traces.

Python's global generator determines the bits of a training, and OpenTelemetry draws from it: for ids, and for
the pause before a rejected batch is sent again. Neither may happen in a worker. Therefore ids come from the
kernel here, the exporter gets its own generator, and only exporters are used for which this is known and
tested.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import structlog

from elastane_proto.log_lines import without_secrets

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span
    from opentelemetry.trace import Tracer as OtelTracer

_log = structlog.get_logger(__name__)

EXPORTER: Final = "OTEL_TRACES_EXPORTER"
ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
DISABLED: Final = "OTEL_SDK_DISABLED"

CLOSE_SECONDS: Final = 1.0
"""Time limit for sending the last spans. A worker whose node is reclaimed cannot wait for a receiver."""

Value = str | bool | int | float | Sequence[str]
"""Value of a span attribute."""


@dataclass(frozen=True)
class Wanted:
    """Requested exporter. exporter: "otlp", "console" or empty for none. problem: why a request failed."""

    exporter: str = ""
    problem: str = ""


def wanted(environ: Mapping[str, str]) -> Wanted:
    """Read the standard's variables: an exporter by name, or OTLP if an endpoint is set."""
    if environ.get(DISABLED, "").strip().lower() == "true":
        return Wanted()
    names = [name.strip().lower() for name in environ.get(EXPORTER, "").split(",") if name.strip()]
    if not names:
        names = ["otlp"] if any(environ.get(name) for name in ENDPOINTS) else []
    if not names or names == ["none"]:
        return Wanted()
    if len(names) > 1 or names[0] not in ("otlp", "console"):
        return Wanted(problem=f"{EXPORTER}={','.join(names)}: one of otlp, console and none is known here")
    protocol = next((value for name in PROTOCOLS if (value := environ.get(name, "").strip())), "grpc")
    if names == ["otlp"] and protocol != "grpc":
        return Wanted(problem=f"traces go by OTLP over grpc, port 4317 as a rule, not by {protocol}")
    return Wanted(names[0])


def open_tracer(service: str, instance: str) -> Tracer | None:
    """Open the tracer of this process, or return None if tracing is not requested or not possible.

    service: "elastane-master" or "elastane-worker", unless OTEL_SERVICE_NAME is set. instance: its name.
    Starts a thread: call it only in processes that no longer fork. Never raises because of its configuration.
    """
    asked = wanted(os.environ)
    if asked.problem:
        _log.warning("nothing is traced", problem=asked.problem)
    if not asked.exporter:
        return None
    try:
        return Tracer(_provider(service, instance, _exporter(asked.exporter)))
    except ImportError as error:
        _log.warning(
            "nothing is traced",
            problem=f"{error.name} is not installed: pip install '.[tracing]' in the project's folder",
        )
    except Exception as error:  # noqa: BLE001 - of values of OTEL_* that the library cannot read
        _log.warning("nothing is traced", problem=f"OpenTelemetry cannot be set up: {error!r}")
    return None


class Tracer:
    """Creates spans and sends them from a background thread.

    Its provider is private; the global one belongs to the script. Times are nanoseconds since the Unix epoch.
    Thread-safe.
    """

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer: OtelTracer = provider.get_tracer("elastane")

    def begin(
        self, name: str, *, at_ns: int, parent: str = "", attributes: Mapping[str, Value] | None = None
    ) -> OpenSpan:
        """Start a span. parent: a traceparent; empty starts a new trace."""
        public = _without_secrets(attributes or {})
        return OpenSpan(
            self._tracer.start_span(name, context=_context(parent), attributes=public, start_time=at_ns)
        )

    def emit(
        self, name: str, *, begin_ns: int, end_ns: int, parent: str, attributes: Mapping[str, Value]
    ) -> None:
        """Send a finished span; does nothing unless `parent` is a valid traceparent."""
        if is_traceparent(parent):
            self.begin(name, at_ns=begin_ns, parent=parent, attributes=attributes).end(max(begin_ns, end_ns))

    def close(self, timeout_seconds: float = CLOSE_SECONDS) -> None:
        """Send the remaining spans, waiting at most `timeout_seconds`. Blocks. Idempotent."""
        thread = threading.Thread(target=self._provider.shutdown, name="elastane-spans", daemon=True)
        thread.start()
        thread.join(timeout_seconds)


class OpenSpan:
    """A span that has not ended. traceparent: the parent to pass to its children."""

    def __init__(self, span: Span) -> None:
        self._span = span
        context = span.get_span_context()
        self.traceparent = f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags & 1:02x}"

    def event(self, name: str, at_ns: int, attributes: Mapping[str, Value]) -> None:
        """Record an event within the span."""
        self._span.add_event(name, _without_secrets(attributes), at_ns)

    def end(self, at_ns: int, attributes: Mapping[str, Value] | None = None) -> None:
        """End the span and hand it to the exporter."""
        self._span.set_attributes(_without_secrets(attributes or {}))
        self._span.end(at_ns)


def _without_secrets(attributes: Mapping[str, Value]) -> dict[str, Value]:
    """Redact secrets: reasons may quote a script's output, and spans leave the cluster as log lines do."""
    return {
        name: without_secrets(value) if isinstance(value, str) else value
        for name, value in attributes.items()
    }


def now_ns() -> int:
    """Wall-clock time in nanoseconds; spans of all processes are aligned by it."""
    return time.time_ns()


def is_traceparent(text: str) -> bool:
    """True if the text is a valid W3C traceparent, version 00, with non-zero IDs."""
    parts = text.split("-")
    lengths = [len(part) for part in parts]
    digits = all(set(part) <= set("0123456789abcdef") for part in parts)
    return lengths == [2, 32, 16, 2] and digits and parts[0] == "00" and all(int(p, 16) for p in parts[1:3])


def _context(traceparent: str) -> Context:
    """Context of the span named by `traceparent`, or an empty one: never the script's current span."""
    from opentelemetry.context import Context
    from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

    if not is_traceparent(traceparent):
        return Context()
    _, trace, span, flags = (int(part, 16) for part in traceparent.split("-"))
    remote = SpanContext(trace, span, is_remote=True, trace_flags=TraceFlags(flags))
    return set_span_in_context(NonRecordingSpan(remote), Context())


def _provider(service: str, instance: str, exporter: SpanExporter) -> TracerProvider:
    from importlib import metadata

    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.id_generator import IdGenerator

    class KernelIds(IdGenerator):
        """IDs from the kernel, so that the state of `random` does not change."""

        def generate_span_id(self) -> int:
            return int.from_bytes(os.urandom(8)) or 1

        def generate_trace_id(self) -> int:
            return int.from_bytes(os.urandom(16)) or 1

    said = Resource.create()
    attributes = {"service.version": metadata.version("elastane")}
    # The library makes up a service name if the variables give none.
    if str(said.attributes.get("service.name", "")).startswith("unknown_service"):
        attributes["service.name"] = service
    if "service.instance.id" not in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", ""):
        attributes["service.instance.id"] = instance
    # No handler at process exit: the code that opened the tracer closes it, with a time limit.
    provider = TracerProvider(
        resource=said.merge(Resource(attributes)), id_generator=KernelIds(), shutdown_on_exit=False
    )
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider


def _exporter(name: str) -> SpanExporter:
    if name == "console":
        import sys

        from opentelemetry.sdk.trace.export import ConsoleSpanExporter

        # One line per span, on stderr: stdout belongs to the script.
        return ConsoleSpanExporter(out=sys.stderr, formatter=lambda span: span.to_json(indent=None) + "\n")
    from opentelemetry.exporter.otlp.proto.grpc import exporter
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

    # The exporter draws its retry pauses from the script's generator (see above), and on a thread of its own.
    library: Any = exporter
    library.random = random.SystemRandom()
    return OTLPSpanExporter()

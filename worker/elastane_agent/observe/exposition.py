"""Serves the agent's metrics over HTTP for Prometheus (`elastane run --metrics HOST:PORT`).

A small threaded server, as the agent has no event loop; it serves only metrics. It supports neither tokens
nor TLS, so addresses beyond loopback need --metrics-insecure.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from itertools import accumulate
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import (
    CollectorRegistry,
    GCCollector,
    PlatformCollector,
    ProcessCollector,
    make_wsgi_app,
)
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from elastane_common.errors import ElastaneError
from elastane_common.observe import catalogue as known
from elastane_common.observe.figures import STEP_BOUNDS, AgentCounts
from elastane_common.observe.metric import Metric
from elastane_proto.v1.ring_pb2 import WorkerFigures

_Samples = dict[Metric, list[tuple[tuple[str, ...], float | WorkerFigures]]]


class MetricsPortError(ElastaneError):
    """The agent's metrics cannot be served at the address."""

    code = "ELA422"


class AgentCollector(Collector):
    """Prometheus collector for one agent and its workers. figures: returns the workers' figures, by id."""

    def __init__(
        self, job: str, counts: AgentCounts, figures: Callable[[], Mapping[str, WorkerFigures]]
    ) -> None:
        self._job = job
        self._counts = counts
        self._figures = figures

    def describe(self) -> Iterable[Family]:
        return ()

    def collect(self) -> Iterable[Family]:
        counts = self._counts
        samples: _Samples = {metric: [] for metric in known.METRICS}
        starts = dict(counts.starts)
        samples[known.AGENT_INFO].append(((self._job,), 1))
        samples[known.RUNNING].append(((), counts.running))
        samples[known.STARTS].append(((), sum(starts.values())))
        samples[known.RESTARTS].append(((), sum(starts.values()) - len(starts)))
        for outcome in ("finished", "drained", "failed", "killed"):
            samples[known.EXITS].append(((outcome,), counts.exits[outcome]))
        samples[known.NOTICES].append(((), counts.spot_notices))
        samples[known.MASTER_RESTARTS].append(((), counts.master_restarts))
        for worker, figures in sorted(self._figures().items()):
            # A worker of another release may have another histogram.
            if len(figures.step_counts) == len(STEP_BOUNDS) + 1:
                _add_worker(samples, worker, figures)
        return [_family(metric, found) for metric, found in samples.items()]


def _add_worker(samples: _Samples, worker: str, figures: WorkerFigures) -> None:
    for metric, value in (
        (known.STEP, figures.step),
        (known.GENERATION, figures.generation),
        (known.ESTS, figures.ests),
        (known.STEP_SECONDS, figures),
        (known.REPLAYED, figures.steps_replayed),
        (known.REPLAY_SECONDS, figures.replay_seconds),
        (known.DATA_WAIT, figures.data_wait_seconds),
        (known.ALL_REDUCE_WAIT, figures.all_reduce_wait_seconds),
        (known.PREPARED_WAIT, figures.prepared_wait_seconds),
        (known.AHEAD, figures.steps_ahead),
        (known.UNDONE, figures.steps_undone),
        (known.RINGS, figures.rings_formed),
        (known.RING_CHANGE_SECONDS, figures.ring_change_seconds),
        (known.HANDOVER_SECONDS, figures.handover_seconds),
        (known.EST_SECONDS, figures.est_seconds),
        (known.AFTER_EST_SECONDS, figures.after_est_seconds),
        (known.RING_STEP_SECONDS, figures.ring_step_seconds),
        (known.CPU, figures.cpu_seconds),
        (known.MEMORY, figures.resident_bytes),
        (known.GPU_USE, figures.gpu_use),
        (known.GPU_MEMORY, figures.gpu_bytes),
    ):
        samples[metric].append(((worker,), value))
    samples[known.HANDOVER_BYTES].append(((worker, "sent"), figures.handover_bytes_sent))
    samples[known.HANDOVER_BYTES].append(((worker, "received"), figures.handover_bytes_received))


def _family(metric: Metric, found: list[tuple[tuple[str, ...], float | WorkerFigures]]) -> Family:
    if metric.kind == "histogram":
        histograms = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
        for labels, figures in found:
            assert isinstance(figures, WorkerFigures)
            # Prometheus wants cumulative counts; workers count each step in one bucket only.
            ends = [*map(str, STEP_BOUNDS), "+Inf"]
            counts = map(float, accumulate(figures.step_counts))
            histograms.add_metric(labels, list(zip(ends, counts, strict=True)), figures.step_seconds)
        return histograms
    make = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    plain = make(metric.name, metric.help, labels=metric.labels)
    for labels, value in found:
        assert not isinstance(value, WorkerFigures)
        plain.add_metric(labels, value)
    return plain


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    allow_reuse_address = True


class _Handler(WSGIRequestHandler):
    timeout = 10.0  # seconds for a client that sends or reads nothing

    def log_message(self, format: str, *args: Any) -> None:
        """Do not log scrapes."""


class MetricsPort:
    """HTTP server for metrics at host:port, from construction until `close`. Raises MetricsPortError."""

    def __init__(self, host: str, port: int, figures: AgentCollector) -> None:
        registry = CollectorRegistry(auto_describe=False)
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=registry)
        registry.register(figures)
        metrics = make_wsgi_app(registry)

        def serve(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
            if environ["PATH_INFO"] == "/metrics":
                return metrics(environ, start_response)
            start_response("404 Not Found", [("Content-Type", "text/plain")])
            return [b"this port serves /metrics only\n"]

        bare = host.strip("[]")
        try:
            family = socket.getaddrinfo(bare, port, type=socket.SOCK_STREAM)[0][0]
            kind = type("_Server", (_Server,), {"address_family": family})
            self._server: WSGIServer = kind((bare, port), _Handler)
        except OSError as error:
            raise MetricsPortError(
                f"metrics cannot be served at {host}:{port}: {error.strerror or error}",
                hint="choose another --metrics HOST:PORT; port 0 takes a free one",
            ) from error
        self._server.set_app(serve)
        self.address = f"{host}:{self._server.server_port}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.2,), name="elastane-metrics", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

"""Exposition of samples to Prometheus: the text format, or OpenMetrics if the scraper requests it."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from elastane_common.observe.metric import Metric as KnownMetric
from elastane_master.metrics import catalogue
from elastane_master.metrics.figures import Samples
from elastane_master.metrics.measures import Distribution


class ProcessFigures:
    """CPU, memory, open files and garbage collection of this process, from prometheus_client."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        GCCollector(registry=self._registry)

    def collect(self) -> Iterable[Metric]:
        return self._registry.collect()


class _Scrape(Collector):
    """Collector for one scrape: the samples gathered for it, and the process's figures."""

    def __init__(self, samples: Samples, process: ProcessFigures) -> None:
        self._samples = samples
        self._process = process

    def collect(self) -> Iterable[Metric]:
        for metric in catalogue.METRICS:
            yield _family(metric, self._samples)
        yield from self._process.collect()

    def describe(self) -> Iterable[Metric]:
        return ()  # the registry has no other collector whose names could clash


def render(samples: Samples, process: ProcessFigures, accept: str) -> tuple[bytes, str]:
    """Return the body and its content type for a scraper that sent the header Accept.

    Thread-safe: `samples` belongs to this call.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Scrape(samples, process))
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


def _family(metric: KnownMetric, samples: Samples) -> Metric:
    """Build a metric family with all its samples; help and type are included even without samples."""
    found = samples.by_metric.get(metric, [])
    if metric.kind == "histogram":
        histograms = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
        for labels, value in found:
            assert isinstance(value, Distribution)
            histograms.add_metric(labels, value.buckets, value.sum)
        return histograms
    family = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    plain = family(metric.name, metric.help, labels=metric.labels)
    for labels, value in found:
        assert not isinstance(value, Distribution)
        plain.add_metric(labels, value)
    return plain

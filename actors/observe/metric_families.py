"""Prometheus families from plain numbers. Names without a namespace get ours: `triolet_`."""

from collections.abc import Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from ..histogram import Histogram

Labels = Mapping[str, str]
_NO_LABELS: Labels = {}


def gauge(name: str, text: str, value: float, labels: Labels = _NO_LABELS) -> Metric:
    family = GaugeMetricFamily(_full(name), text, labels=list(labels))
    family.add_metric(list(labels.values()), value)
    return family


def counter(name: str, text: str, value: float, labels: Labels = _NO_LABELS) -> Metric:
    family = CounterMetricFamily(_full(name), text, labels=list(labels))
    family.add_metric(list(labels.values()), value)
    return family


def gauges(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(_full(name), text, labels=[label])
    for key, value in sorted(values.items()):
        family.add_metric([key], value)
    return family


def counters(name: str, text: str, label: str, values: Mapping[str, float], labels: Labels = _NO_LABELS) -> Metric:
    family = CounterMetricFamily(_full(name), text, labels=[*labels, label])
    for key, value in sorted(values.items()):
        family.add_metric([*labels.values(), key], value)
    return family


def histogram(name: str, text: str, histogram: Histogram, labels: Labels = _NO_LABELS) -> Metric:
    family = HistogramMetricFamily(_full(name), text, labels=list(labels))
    family.add_metric(list(labels.values()), histogram.cumulative(), histogram.sum)
    return family


def _full(name: str) -> str:
    return name if ":" in name else f"triolet_{name}"

"""Prometheus metrics: a walk over everybody's `statistics()` when asked, in a registry of our own.

Nothing is counted here. Labels are reasons, codes and states from our own vocabulary, never anything a client wrote.
"""

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from .accounts import Accounts, GatewayStatistics
from .histogram import Histogram
from .ledger import peak_resident_bytes, resident_bytes
from .reports import ServerReport
from .scheduler_statistics import SchedulerStatistics
from .worker_status import WorkerStatus


class Metrics:
    """The text of /metrics."""

    def __init__(
        self,
        *,
        accounts: Accounts,
        gateway: Callable[[], GatewayStatistics],
        scheduler: Callable[[], SchedulerStatistics],
        worker: WorkerStatus,
        healthy: Callable[[], bool],
        several: ServerReport | None = None,
    ) -> None:
        """`several` are the processes of a server that has more than this one."""
        self._registry = CollectorRegistry()
        self._registry.register(_Walk(accounts, gateway, scheduler, worker, healthy))
        if several is None:
            ProcessCollector(registry=self._registry)
        else:
            self._registry.register(_Processes(several))

    def render(self) -> bytes:
        return generate_latest(self._registry)


def render_report(report: ServerReport) -> bytes:
    """The text of /metrics for a server of several processes."""
    accounts, worker = Accounts(), WorkerStatus()
    accounts.absorb(report.accounts)
    worker.pid, worker.restarts = report.worker.pid, report.worker.restarts
    worker.step_time.absorb(report.worker.step_time)
    metrics = Metrics(
        accounts=accounts,
        gateway=lambda: accounts.statistics(report.live),
        scheduler=lambda: report.scheduler,
        worker=worker,
        healthy=lambda: report.health.ready,
        several=report,
    )
    return metrics.render()


class _Processes(Collector):
    def __init__(self, report: ServerReport) -> None:
        self._report = report

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        processes = self._report.processes
        seconds = {name: process.cpu_seconds for name, process in processes.items()}
        resident = {name: process.rss_bytes for name, process in processes.items()}
        yield _counters("process_cpu_seconds", "CPU time of the scheduler's and the web processes", "process", seconds)
        yield _gauges("process_resident_memory_bytes", "Memory of each of them", "process", resident)
        yield _gauge("web_processes_silent", "Web processes that did not answer in time", self._report.silent)
        yield _counter("web_process_restarts", "Web processes started again", self._report.front_restarts)


class _Walk(Collector):
    def __init__(
        self,
        accounts: Accounts,
        gateway: Callable[[], GatewayStatistics],
        scheduler: Callable[[], SchedulerStatistics],
        worker: WorkerStatus,
        healthy: Callable[[], bool],
    ) -> None:
        self._accounts = accounts
        self._gateway = gateway
        self._scheduler = scheduler
        self._worker = worker
        self._healthy = healthy

    def describe(self) -> list[Metric]:
        """Nothing at registration: the statistics may not be there yet."""
        return []

    def collect(self) -> Iterator[Metric]:
        yield from self._requests()
        yield from self._steps()
        yield from self._latencies()

    def _requests(self) -> Iterator[Metric]:
        gateway, scheduler = self._gateway(), self._scheduler()
        yield _gauge("ready", "1 when the engine is healthy", float(self._healthy()))
        yield _gauge("requests_live", "Requests accepted and unfinished", gateway.live)
        yield _gauge("requests_running", "Choices in the batch", scheduler.running)
        yield _gauge("requests_parked", "Choices whose reader is behind", scheduler.parked)
        yield _gauge("requests_waiting", "Choices that wait for their first or next step", scheduler.waiting)
        yield _gauges("requests_waiting_by_reason", "What keeps them waiting", "reason", scheduler.waiting_by_reason)
        yield _counter("requests_accepted", "Requests that got a place", gateway.accepted)
        yield _counters("requests_finished", "Requests that ended", "reason", gateway.finished)
        yield _counters("requests_refused", "Requests answered with an error", "code", gateway.refused)
        text = "Requests answered with an error before a stream began"
        yield _counters("http_errors", text, "code", self._accounts.http_errors)
        yield _counter("prompt_tokens", "Prompt tokens of ended requests", gateway.prompt_tokens)
        yield _counter("generation_tokens", "Tokens generated and kept", scheduler.totals.generated_tokens)
        yield _counter("cached_prompt_tokens", "Prompt tokens served by the prefix cache", gateway.cached_tokens)

    def _steps(self) -> Iterator[Metric]:
        scheduler, totals = self._scheduler(), self._scheduler().totals
        blocks = scheduler.blocks
        states = {"free": blocks.free, "cached": blocks.cached, "owned": blocks.owned}
        yield _gauges("kv_blocks", "KV blocks by state", "state", states)
        yield _gauge("kv_usage_ratio", "Share of the KV blocks in use", blocks.owned / max(1, blocks.total))
        yield _counter("kv_evictions", "Cached blocks that were taken for new text", totals.evictions)
        yield _counter("prefix_query_tokens", "Prompt tokens looked up in the prefix cache", totals.prefix_query_tokens)
        yield _counter("prefix_hit_tokens", "Prompt tokens found there", totals.prefix_hit_tokens)
        yield _counter("preemptions", "Sequences sent back to be computed again", totals.preemptions)
        yield _counter("steps", "Steps answered by the worker", totals.steps)
        yield _counter("model_seconds", "Seconds in the forward pass", totals.model_seconds)
        for name, value in (("allocations", totals.device_allocations), ("compilations", totals.device_compilations)):
            yield _counter(f"device_{name}_after_ready", f"{name.title()} while serving, which promises none", value)
        yield _counter("wasted_tokens", "Tokens sampled behind the end of their sequence", totals.wasted_tokens)
        yield _counter("worker_restarts", "Workers started again", self._worker.restarts)
        pid = self._worker.pid
        memory = resident_bytes(pid) if pid is not None else 0
        yield _gauge("worker_resident_memory_bytes", "Memory of the worker process", memory)
        peak = peak_resident_bytes(pid) if pid is not None else 0
        yield _gauge("worker_peak_rss_bytes", "The most memory the worker process has held in RAM", peak)

    def _latencies(self) -> Iterator[Metric]:
        accounts = self._accounts
        yield _histogram("request_queue_seconds", "Arrival to first step", accounts.queue_time)
        yield _histogram("time_to_first_token_seconds", "Arrival to first text", accounts.first_token)
        yield _histogram("inter_token_latency_seconds", "Time from token to token", accounts.between_tokens)
        yield _histogram("request_duration_seconds", "Arrival to end", accounts.request_time)
        yield _histogram("step_duration_seconds", "One step in the worker", self._worker.step_time)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"triolet_{name}", text, value=value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(f"triolet_{name}", text, value=value)


def _gauges(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(f"triolet_{name}", text, labels=[label])
    for key, value in sorted(values.items()):
        family.add_metric([key], value)
    return family


def _counters(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    family = CounterMetricFamily(f"triolet_{name}", text, labels=[label])
    for key, value in sorted(values.items()):
        family.add_metric([key], value)
    return family


def _histogram(name: str, text: str, histogram: Histogram) -> Metric:
    return HistogramMetricFamily(f"triolet_{name}", text, buckets=histogram.cumulative(), sum_value=histogram.sum)

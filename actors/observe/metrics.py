"""Prometheus metrics and the ledger: a server's report, rendered on request.

Nothing is counted here. Labels are our own reasons, codes and states, and names of adapters, never text of a request.
"""

from collections.abc import Collection, Iterator, Mapping

from msgspec import structs
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from ...protocol.reports import BlockCounts, Ledger, ServerReport
from ...protocol.settings import ServeSettings, model_name
from ..gateway.accounts import add_up
from ..histogram import Histogram
from ..supervisor.process_facts import peak_resident_bytes, resident_bytes
from ..supervisor.worker_status import STEP_BOUNDS
from .metric_aliases import vllm_aliases
from .metric_families import counter, counters, gauge, gauges, histogram


def render_metrics(
    report: ServerReport, settings: ServeSettings, models: Mapping[str, ServerReport] | None = None
) -> bytes:
    """The text of /metrics. `metric_aliases` adds the metrics that vLLM also has, under its names.

    `models` are the reports of several: what each of them counts has its name as the label `model`.
    """
    registry = CollectorRegistry()
    own = {model_name(settings): report}
    registry.register(_Walk(report, models or {} if settings.models else own, settings))
    if report.web.processes is None:
        ProcessCollector(registry=registry)
    return generate_latest(registry)


def ledger_of(report: ServerReport, models: Collection[ServerReport] = ()) -> Ledger:
    """The resources of the whole server; `children` are the web processes and the workers."""
    web = report.web.processes or {}
    processes = [report.process, *web.values()]
    each = models or (report,)
    blocks = [structs.asdict(model.scheduler.blocks) for model in each]
    return Ledger(
        kv_blocks=BlockCounts(**{name: sum(counts[name] for counts in blocks) for name in blocks[0]}),
        requests=report.web.live,
        kept_answers=report.web.kept.answers,
        tasks=sum(process.tasks for process in processes),
        fds=sum(process.fds for process in processes),
        children=len(web) + sum(model.worker.pid is not None for model in each),
        rss_bytes=sum(process.rss_bytes for process in processes),
    )


class _Walk(Collector):
    def __init__(self, report: ServerReport, models: Mapping[str, ServerReport], settings: ServeSettings) -> None:
        self._report = report
        self._models = models
        self._settings = settings

    def describe(self) -> list[Metric]:
        """Nothing at registration: our names cannot clash."""
        return []

    def collect(self) -> Iterator[Metric]:
        yield from _of_server(self._report)
        families: dict[str, Metric] = {}
        for name, report in self._models.items():
            for family in _OfModel(report, name if self._settings.metric_aliases == "vllm" else None).collect():
                found = families.setdefault(family.name, family)
                if self._settings.models:
                    labelled = [sample._replace(labels={"model": name, **sample.labels}) for sample in family.samples]
                    found.samples = labelled if found is family else found.samples + labelled
        yield from families.values()


def _of_server(report: ServerReport) -> Iterator[Metric]:
    """What is of no model alone."""
    accounts, web, batches = add_up([report.web.accounts]), report.web, report.batches
    text = "Requests answered with an error before a stream began"
    yield counters("http_errors", text, "code", accounts.http_errors)
    yield gauge("answers_kept", "Answers that a client may resume", web.kept.answers)
    yield gauge("answers_kept_bytes", "Memory that they hold", web.kept.bytes)
    text = "Resumed, refused to be, or given up for lack of room"
    yield counters("answers_kept_events", text, "event", accounts.kept_answers)
    yield gauge("batches_open", "Batches that have not ended", batches.open)
    yield gauge("batch_lines_waiting", "Lines without a result, of the batches that run", batches.lines_waiting)
    lines = {"completed": batches.lines_completed, "failed": batches.lines_failed}
    yield counters("batch_lines", "Lines that got a result", "result", lines)
    if web.processes is None:
        return  # a single process is described by `process_…`
    processes = {"scheduler": report.process, **web.processes}
    seconds = {name: process.cpu_seconds for name, process in processes.items()}
    resident = {name: process.rss_bytes for name, process in processes.items()}
    yield counters("process_cpu_seconds", "CPU time of the scheduler's and the web processes", "process", seconds)
    yield gauges("process_resident_memory_bytes", "Memory of each of them", "process", resident)
    yield gauge("web_processes_silent", "Web processes that did not answer in time", web.silent)
    yield counter("web_process_restarts", "Web processes started again", web.restarts)


class _OfModel:
    def __init__(self, report: ServerReport, vllm_model: str | None) -> None:
        self._report = report
        self._scheduler = report.scheduler
        self._accounts = add_up([report.web.accounts])
        self._vllm_model = vllm_model

    def collect(self) -> Iterator[Metric]:
        yield from self._requests()
        yield from self._steps()
        yield from self._worker()
        yield from self._latencies()
        yield from self._adapters()
        if traces := self._accounts.traces:
            yield counter("traces_exported", "Requests whose spans the collector took", traces["exported"])
            lost = {reason: traces[reason] for reason in ("queue_full", "export_failed")}
            yield counters("traces_dropped", "Requests whose spans were lost", "reason", lost)
        if records := self._accounts.usage_records:
            yield counters("usage_records", "Usage records by their fate", "result", records)
        if self._vllm_model is not None:
            yield from vllm_aliases(self._accounts, self._scheduler, self._vllm_model)

    def _requests(self) -> Iterator[Metric]:
        accounts, scheduler = self._accounts, self._scheduler
        health = self._report.health
        yield gauge("ready", "1 when the engine is healthy", float(health.ready))
        stages = {health.loading.stage: health.loading.share} if health.loading else {}
        yield gauges("loading_ratio", "How much of this stage of loading the model is done", "stage", stages)
        yield gauge("requests_live", "Requests accepted and unfinished", self._report.web.live)
        yield gauge("requests_running", "Choices in the batch", scheduler.running)
        yield gauge("requests_parked", "Choices whose reader is behind", scheduler.parked)
        yield gauge("requests_waiting", "Choices that wait for their first or next step", scheduler.waiting)
        yield gauges("requests_waiting_by_reason", "What keeps them waiting", "reason", scheduler.waiting_by_reason)
        yield counter("requests_accepted", "Requests that got a place", accounts.accepted)
        yield counters("requests_finished", "Requests that ended", "reason", accounts.finished)
        yield counters("requests_refused", "Requests answered with an error", "code", accounts.refused)
        yield counters("key_tokens", "Tokens of ended requests of keys with a name", "key", accounts.key_tokens)
        yield counters("key_requests_refused", "Requests beyond their key's limits", "key", accounts.key_refused)
        yield counter("prompt_tokens", "Prompt tokens of ended requests", accounts.prompt_tokens)
        yield counter("generation_tokens", "Tokens generated and kept", scheduler.totals.generated_tokens)
        yield counter("cached_prompt_tokens", "Prompt tokens served by the prefix cache", accounts.cached_tokens)

    def _steps(self) -> Iterator[Metric]:
        blocks, totals = self._scheduler.blocks, self._scheduler.totals
        states = {"free": blocks.free, "cached": blocks.cached, "owned": blocks.owned}
        yield gauges("kv_blocks", "KV blocks by state", "state", states)
        yield gauge("kv_usage_ratio", "Share of the KV blocks in use", blocks.owned / max(1, blocks.total))
        yield counter("kv_evictions", "Cached blocks that were taken for new text", totals.evictions)
        yield counter("prefix_query_tokens", "Prompt tokens looked up in the prefix cache", totals.prefix_query_tokens)
        yield counter("prefix_hit_tokens", "Prompt tokens found there", totals.prefix_hit_tokens)
        yield gauge(
            "batch_lines_running", "Choices of batches' lines that hold KV blocks", self._scheduler.background_running
        )
        yield counter("preemptions", "Sequences sent back to be computed again", totals.preemptions)
        yield counter("quarantined", "Requests that failed because workers died of them", totals.convicted)
        yield counter("displaced", "Sequences that gave their row to another tenant's", totals.displaced)
        yield counter("steps", "Steps answered by the worker", totals.steps)
        yield counter("model_seconds", "Seconds in the forward pass", totals.model_seconds)
        for name, value in (("allocations", totals.device_allocations), ("compilations", totals.device_compilations)):
            yield counter(f"device_{name}_after_ready", f"{name.title()} while serving, which promises none", value)
        yield counter("wasted_tokens", "Tokens sampled behind the end of their sequence", totals.wasted_tokens)

    def _worker(self) -> Iterator[Metric]:
        worker = self._report.worker
        yield counter("worker_restarts", "Workers started again", worker.restarts)
        memory = resident_bytes(worker.pid) if worker.pid is not None else 0
        yield gauge("worker_resident_memory_bytes", "Memory of the worker process", memory)
        peak = peak_resident_bytes(worker.pid) if worker.pid is not None else 0
        yield gauge("worker_peak_rss_bytes", "The most memory the worker process has held in RAM", peak)

    def _latencies(self) -> Iterator[Metric]:
        accounts, step_time = self._accounts, Histogram(STEP_BOUNDS)
        step_time.absorb(self._report.worker.step_time)
        yield histogram("request_queue_seconds", "Arrival to first step", accounts.queue_time)
        yield histogram("time_to_first_token_seconds", "Arrival to first text", accounts.first_token)
        yield histogram("inter_token_latency_seconds", "Time from token to token", accounts.between_tokens)
        yield histogram("request_duration_seconds", "Arrival to end", accounts.request_time)
        yield histogram("request_prefill_seconds", "First step to first text", accounts.prefill_time)
        yield histogram("request_decode_seconds", "First text to end", accounts.decode_time)
        yield histogram("request_prompt_tokens", "Prompt tokens of a request", accounts.prompt_length)
        yield histogram("request_generation_tokens", "Tokens of its answer", accounts.answer_length)
        yield histogram("step_duration_seconds", "One step in the worker", step_time)

    def _adapters(self) -> Iterator[Metric]:
        adapters = self._scheduler.adapters
        states = {"loaded": adapters.loaded, "loading": adapters.loading, "waiting": adapters.waiting}
        yield gauges("adapters", "LoRA adapters in the worker, or wanted there", "state", states)
        yield counter("adapter_loads", "Adapters that the worker was told to load", adapters.loads)
        text = "Accepted requests with a LoRA adapter"
        yield counters("adapter_requests", text, "adapter", self._accounts.adapters)

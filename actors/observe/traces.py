"""Traces: a thread turns every ended request into spans and sends them to an OpenTelemetry collector.

Contract: `offer` never waits and costs one append to a queue. The queue is bounded: requests that arrive while it is
full are dropped and counted, and so are spans that the collector did not accept. Sampling, headers, timeouts and the
service name follow the standard OTEL_* variables. OpenTelemetry is optional; only `trace_export.py` imports it.
"""

import logging
import os
import queue
from collections import Counter
from importlib.util import find_spec
from threading import Thread
from time import monotonic
from typing import Final

from ..gateway.history import History

INSTALL: Final = "run pip install '.[otel]' in a checkout of Triolet"
MAX_WAITING: Final = 2048  # requests, of some 600 bytes each; covers several seconds at a few hundred a second
_BATCH: Final = 256  # requests: some 1,300 spans, 400 KB on the wire
_BATCH_SECONDS: Final = 1.0  # from the first request of a batch
FLUSH_SECONDS: Final = 3.0  # for what is left when the server ends

_LOG: Final = logging.getLogger("triolet.traces")


class Traces:
    """The queue, its thread, and counts of what happened to the requests."""

    def __init__(self, endpoint: str | None) -> None:
        """`endpoint` None: from OTEL_EXPORTER_OTLP_[TRACES_]ENDPOINT."""
        from .trace_export import SpanExport

        # Requests. Each count has one writer: the event loop for `queue_full`, the thread for the others.
        self.counts = Counter({"exported": 0, "queue_full": 0, "export_failed": 0})
        self._export = SpanExport(endpoint)
        self._queue: queue.SimpleQueue[History | None] = queue.SimpleQueue()
        self._thread = Thread(target=self._run, name="traces", daemon=True)  # a hung collector must not delay an exit
        self._thread.start()

    def offer(self, history: History) -> None:
        """Queue an ended request."""
        if self._queue.qsize() >= MAX_WAITING:
            self.counts["queue_full"] += 1
        else:
            self._queue.put(history)

    def close(self) -> None:
        """Send the rest, for a limited time."""
        self._queue.put(None)
        self._thread.join(FLUSH_SECONDS)
        self._export.close()

    def _run(self) -> None:
        ended = False
        while not ended:
            batch, ended = self._take()
            if batch and self._export.send(batch):
                self.counts["exported"] += len(batch)
            else:
                self.counts["export_failed"] += len(batch)

    def _take(self) -> tuple[list[History], bool]:
        """The next batch, and whether it is the last. Waits without a timeout, so an idle server does not wake up."""
        item = self._queue.get()
        batch: list[History] = []
        until = monotonic() + _BATCH_SECONDS
        while item is not None:
            batch.append(item)
            if len(batch) >= _BATCH:
                return batch, False
            try:
                item = self._queue.get(timeout=max(until - monotonic(), 0))
            except queue.Empty:
                return batch, False
        return batch, True


def installed() -> bool:
    """Whether the optional packages are installed."""
    try:
        return all(map(find_spec, ("opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http.trace_exporter")))
    except ModuleNotFoundError:  # a parent package is missing
        return False


def open_traces(endpoint: str | None) -> Traces | None:
    """None if traces are off: neither the option nor the standard variables name a collector."""
    environment = os.environ
    if environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    if endpoint is None:
        wanted = any(
            environment.get(f"OTEL_EXPORTER_OTLP_{middle}ENDPOINT") for middle in ("", "TRACES_")
        ) and environment.get("OTEL_TRACES_EXPORTER", "otlp") in ("otlp", "")
        if not wanted:
            return None
        if not installed():
            _LOG.warning("OTEL_EXPORTER_OTLP_ENDPOINT is set, but there will be no traces without: %s", INSTALL)
            return None
    return Traces(endpoint)

"""Sends requests as OpenTelemetry spans over OTLP/HTTP. The only module that imports OpenTelemetry."""

from collections.abc import Iterable
from importlib.metadata import version
from typing import Final
from urllib.parse import urlsplit

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from ..gateway.history import History
from .spans import phase_spans, root_span

TRACES_PATH: Final = "/v1/traces"
_PROPAGATOR: Final = TraceContextTextMapPropagator()


def traces_url(endpoint: str) -> str:
    """A collector's address, `http://127.0.0.1:4318`, gets the standard path; a URL with a path is used as it is."""
    return endpoint if urlsplit(endpoint).path.strip("/") else endpoint.rstrip("/") + TRACES_PATH


class _Ended(SpanProcessor):
    """Keeps the spans that the sampler selected."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        self.spans.append(span)


class SpanExport:
    """Used by one thread, except for `close`."""

    def __init__(self, endpoint: str | None) -> None:
        resource = Resource.create()  # with OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES
        if str(resource.attributes.get("service.name", "unknown_service")).startswith("unknown_service"):
            resource = resource.merge(Resource({"service.name": "triolet", "service.version": version("triolet")}))
        provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._ended = _Ended()
        provider.add_span_processor(self._ended)
        self._tracer = provider.get_tracer("triolet", version("triolet"))
        self._exporter = OTLPSpanExporter(None if endpoint is None else traces_url(endpoint))

    def send(self, histories: Iterable[History]) -> bool:
        """Send them; returns whether the collector accepted them. Waits at most OTEL_EXPORTER_OTLP_TIMEOUT."""
        for history in histories:
            self._trace(history)
        spans, self._ended.spans = self._ended.spans, []
        return not spans or self._exporter.export(spans) is SpanExportResult.SUCCESS

    def close(self) -> None:
        """Ends an export that is waiting to retry."""
        self._exporter.shutdown()  # type: ignore[no-untyped-call]  # theirs

    def _trace(self, history: History) -> None:
        record = root_span(history)
        parent = _PROPAGATOR.extract({"traceparent": history.traceparent}) if history.traceparent else Context()
        root = self._tracer.start_span(
            record.name, parent, kind=SpanKind.SERVER, attributes=record.attributes, start_time=record.start
        )
        if history.error is not None:
            root.set_status(Status(StatusCode.ERROR, history.error))
        inside = set_span_in_context(root, Context())
        for phase in phase_spans(history):
            self._tracer.start_span(phase.name, inside, start_time=phase.start).end(phase.end)
        root.end(record.end)

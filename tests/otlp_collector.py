"""A collector of traces in this process: it decodes what is posted to it, and can hold its answers or refuse."""

import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

PATIENCE = 30.0  # seconds; what is waited for takes far less


class Collector:
    """What came so far. Clear `answering` to hold the answers, set `status` to refuse."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.status = 200
        self.answering = threading.Event()
        self.answering.set()
        self.paths: list[str] = []
        self.resources: list[dict[str, Any]] = []
        self.spans: list[Any] = []  # opentelemetry.proto.trace.v1.Span
        self._came = threading.Condition()

    def take(self, path: str, body: bytes) -> None:
        request = ExportTraceServiceRequest.FromString(body)
        with self._came:
            self.paths.append(path)
            for resource_spans in request.resource_spans:
                self.resources.append(attributes(resource_spans.resource))
                self.spans += [span for scope in resource_spans.scope_spans for span in scope.spans]
            self._came.notify_all()

    def wait_for_roots(self, count: int, trace_id: str = "") -> list[Any]:
        """The root spans of so many requests (of one trace, if that is named), once they are there."""

        def roots() -> list[Any]:
            own = {span.span_id for span in self.spans}
            found = [span for span in self.spans if span.parent_span_id not in own]
            return [span for span in found if trace_id in ("", span.trace_id.hex())]

        with self._came:
            assert self._came.wait_for(lambda: len(roots()) >= count, PATIENCE), f"{len(roots())} of {count} came"
            return roots()

    def children(self, root: Any) -> list[Any]:
        found = [span for span in self.spans if span.parent_span_id == root.span_id]
        return sorted(found, key=lambda span: span.start_time_unix_nano)


def attributes(holder: Any) -> dict[str, Any]:
    """Of a span or a resource, as plain values."""

    def plain(value: Any) -> Any:
        kind = value.WhichOneof("value")
        return [plain(one) for one in value.array_value.values] if kind == "array_value" else getattr(value, kind)

    return {attribute.key: plain(attribute.value) for attribute in holder.attributes}


@contextmanager
def collecting() -> Generator[Collector]:
    """A collector on a free port for the length of a block."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            collector.take(self.path, body)
            collector.answering.wait(PATIENCE)
            self.send_response(collector.status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector = Collector(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield collector
    finally:
        collector.answering.set()
        server.shutdown()
        thread.join()
        server.server_close()

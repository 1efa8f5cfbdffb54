"""GET /metrics: the engine's registry in the Prometheus text format, and the errors that never reached the engine."""

from prometheus_client import CollectorRegistry, Counter, generate_latest
from quart_trio.wrappers import TrioResponse as Response

from ..protocol.errors import ErrorCode
from .connection import Application


class HttpErrors:
    """Requests that were answered with an error, by the code in its body."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        text = "Requests answered with an error before a stream began, by code"
        self._count = Counter("triolet_http_errors", text, ["code"], registry=self._registry)

    def add(self, code: ErrorCode) -> None:
        self._count.labels(code).inc()

    def render(self) -> bytes:
        return generate_latest(self._registry)


def register(app: Application, http_errors: HttpErrors) -> None:
    engine = app.engine

    @app.get("/metrics")
    async def metrics() -> Response:
        text = engine.metrics.render() + http_errors.render()
        return Response(text, content_type="text/plain; version=0.0.4; charset=utf-8")

"""GET /metrics: the figures of the whole server in the Prometheus text format."""

from quart_trio.wrappers import TrioResponse as Response

from ...actors.observe.metrics import render_metrics
from ..asgi import Application


def register(app: Application) -> None:
    engine = app.engine

    @app.get("/metrics")
    async def metrics() -> Response:
        text = render_metrics(await engine.report(), engine.settings)
        return Response(text, content_type="text/plain; version=0.0.4; charset=utf-8")

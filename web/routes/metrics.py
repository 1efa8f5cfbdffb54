"""GET /metrics: the figures of the whole server in the Prometheus text format."""

from quart_trio.wrappers import TrioResponse as Response

from ..asgi import Application


def register(app: Application) -> None:
    engine = app.engine

    @app.get("/metrics")
    async def metrics() -> Response:
        text = await engine.whole_metrics()
        return Response(text, content_type="text/plain; version=0.0.4; charset=utf-8")

"""Routes for operators: is the process alive, does the engine make progress, which version, does the ledger balance."""

from importlib.metadata import version

import msgspec
from quart_trio.wrappers import TrioResponse as Response

from ...actors.observe.metrics import ledger_of
from ...protocol.errors import ApiError
from ..asgi import Application, error_response


def register(app: Application) -> None:
    engine = app.engine

    @app.get("/health/live")
    async def live() -> Response:
        """The process answers. This says nothing about the engine, and needs no key."""
        return Response(b'{"status":"live"}', content_type="application/json")

    @app.get("/health")
    @app.get("/health/ready")
    async def ready() -> Response:
        health = await engine.health()
        if health.ready:
            return Response(msgspec.json.encode(health), content_type="application/json")
        return error_response(ApiError("engine_unavailable", f"Not ready ({health.status}): {health.reason}"))

    @app.get("/version")
    async def server_version() -> Response:
        ready = engine.ready
        body = {"version": version("triolet"), "components": ready.versions if ready else {}}
        return Response(msgspec.json.encode(body), content_type="application/json")

    @app.get("/internal/ledger")
    async def ledger() -> Response:
        return Response(msgspec.json.encode(ledger_of(await engine.report())), content_type="application/json")

"""GET /docs: the endpoints of /openapi.json as a page, for whoever opens a server's address to see what it can do.

A static table without a script. It shows nothing of the server, so it needs no key.
"""

from html import escape
from importlib.metadata import version
from typing import Final, cast

from quart_trio.wrappers import TrioResponse as Response

from ..asgi import Application
from .openapi import paths
from .openapi_schemas import Schema
from .page_files import HEADERS, TYPES

_PAGE: Final = """<!doctype html>
<html lang="en">
<head>
  <meta charset="utf-8">
  <meta name="viewport" content="width=device-width, initial-scale=1">
  <meta name="color-scheme" content="light dark">
  <title>Triolet: endpoints</title>
  <link rel="icon" href="static/icon.svg" type="image/svg+xml">
</head>
<body>
  <h1>Triolet {version}</h1>
  <p>OpenAI's clients work with this server: their base address is this one with <code>/v1</code>.
    <a href="openapi.json">openapi.json</a> describes every field. There are also <a href="./">a chat page</a> and
    <a href="dashboard">a dashboard</a>. Every endpoint by example, and what is not supported: <code>docs/</code> in
    Triolet's sources.</p>
  <table>
{rows}
  </table>
</body>
</html>
"""


def endpoint_list() -> str:
    """The page: a row per operation of the document, in its order."""
    rows = [
        f"<tr><td><code>{method.upper()} {escape(path)}</code></td><td>{escape(str(operation['summary']))}</td></tr>"
        for path, operations in cast("dict[str, dict[str, Schema]]", paths()).items()
        for method, operation in operations.items()
    ]
    return _PAGE.format(version=escape(version("triolet")), rows="\n".join(rows))


def register(app: Application) -> None:
    page = endpoint_list()

    @app.get("/docs")
    async def endpoints() -> Response:
        return Response(page, headers=HEADERS, content_type=TYPES[".html"])

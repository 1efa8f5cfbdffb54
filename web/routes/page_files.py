"""The chat page at `/`, the dashboard at `/dashboard` and their files under `/static/`, read once.

Names that are not in the table do not exist.
"""

from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from quart import request
from quart_trio.wrappers import TrioResponse as Response
from werkzeug.exceptions import NotFound

from ..asgi import Application

PAGE = Path(__file__).resolve().parent.parent / "page"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".woff2": "font/woff2",
    ".webmanifest": "application/manifest+json",
}
HEADERS = {
    # trusted types: no code of the page can turn text into markup, a model's words least of all
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # browsers ask each time, and get 304 while the file is unchanged
}
# An icon in the page itself is drawn also when it is needed first while the server is away.
ICONS_HERE = b"<!-- icons.svg -->"


class PageFile(NamedTuple):
    data: bytes
    type: str
    tag: str


def read_page(folder: Path = PAGE) -> dict[str, PageFile]:
    """All files of the page types, by their names below `folder`. Pages hold the icons where they ask for them."""
    icons = (folder / "icons.svg").read_bytes().rstrip()
    files: dict[str, PageFile] = {}
    for path in sorted(folder.rglob("*")):
        if path.suffix in TYPES and path.is_file():
            data = path.read_bytes().replace(ICONS_HERE, icons)
            name = path.relative_to(folder).as_posix()
            files[name] = PageFile(data, TYPES[path.suffix], sha256(data).hexdigest()[:32])
    return files


def register(app: Application) -> None:
    files = read_page()

    def answer(name: str) -> Response:
        file = files.get(name)
        if file is None:
            raise NotFound
        if request.if_none_match.contains(file.tag):
            response = Response(status=304, headers=HEADERS)
        else:
            response = Response(file.data, headers=HEADERS, content_type=file.type)
        response.set_etag(file.tag)
        return response

    @app.get("/")
    async def page() -> Response:
        return answer("index.html")

    if root := app.engine.settings.root_path:

        @app.get(root)
        async def page_without_slash() -> Response:
            """The page's addresses are relative, so it must not be at this one."""
            return Response(status=308, headers={"Location": f"{root}/"})

    @app.get("/dashboard")
    async def dashboard_page() -> Response:
        return answer("dashboard/index.html")

    @app.get("/static/<path:name>")
    async def page_file(name: str) -> Response:
        return answer(name)

"""A page that holds the renderer alone, from the files of the chat page and under their security policy: no server."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

from playwright.sync_api import Browser, Page, Route

from triolet.web.routes.page_files import HEADERS, read_page

from ..chromium import fresh_page

URL = "http://page.test/"
SHEETS = ("theme", "messages", "prose", "code")
LINKS = "".join(f'<link rel="stylesheet" href="static/{name}.css">' for name in SHEETS)
PAGE = f'<!doctype html><html lang="en"><head><title>Prose</title>{LINKS}</head><body><main id="out" class="prose"></main></body></html>'  # noqa: E501

# Shows the texts one after another, as one answer that grows; then ends it, and waits until its formulas are set.
SHOW = """async ([texts, done]) => {
  const { createRenderer } = await import("/static/render.js");
  const out = document.getElementById("out");
  out.replaceChildren();
  window.renderer = createRenderer(out);
  for (const text of texts) window.renderer.update(text, false);
  if (done) window.renderer.update(texts.at(-1), true);
}"""
SETTLED = "() => !document.querySelector('.tex:not(.wrong)')"


@dataclass
class RenderPage:
    page: Page

    def show(self, *texts: str, done: bool = True) -> None:
        self.page.evaluate(SHOW, [list(texts), done])

    def html(self, *texts: str, done: bool = True) -> str:
        self.show(*texts, done=done)
        return str(self.page.locator("#out").inner_html())

    def work(self) -> int:
        """Characters that the renderer parsed and appended for what it shows."""
        return int(self.page.evaluate("window.renderer.work"))


@contextmanager
def render_page(browser: Browser) -> Generator[RenderPage]:
    files = read_page()

    def serve(route: Route) -> None:
        path = route.request.url.removeprefix(URL)
        if not path:
            route.fulfill(body=PAGE, content_type="text/html", headers=HEADERS)
            return
        file = files[path.removeprefix("static/")]
        route.fulfill(body=file.data, content_type=file.type, headers=HEADERS)

    with fresh_page(browser) as page:
        page.route(f"{URL}**", serve)
        page.goto(URL)
        yield RenderPage(page)

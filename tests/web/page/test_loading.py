"""Both pages while the server loads its model: they show how far it is, and go on by themselves. Under a path."""

from playwright.sync_api import Browser, expect

from ...held_server import held_server
from ..chromium import fresh_page
from .visitor import ask, wait_for_answers


def test_the_pages_load_with_the_model(browser: Browser) -> None:
    with (
        held_server("--root-path", "/our/llm") as server,
        fresh_page(browser) as chat,
        fresh_page(browser) as dashboard,
    ):
        assert server.url.endswith("/our/llm")
        chat.goto(server.url)
        dashboard.goto(f"{server.url}/dashboard")
        for page in (chat, dashboard):
            expect(page.locator("#loading")).to_contain_text("Loading the model: starting the worker")
            expect(page.locator("#loading progress")).to_be_visible()
        server.let_load()
        for page in (chat, dashboard):
            expect(page.locator("#status")).to_have_attribute("data-state", "ready")
            expect(page.locator("#loading")).to_have_count(0)
        expect(dashboard.locator("#model")).to_have_text("triolet-demo")
        ask(chat, "What is 2 + 2?")
        wait_for_answers(chat, 1)

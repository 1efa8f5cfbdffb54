"""Which model answers, where a server has several: the choice belongs to the conversation; one that is gone is told.

The list is ours, since `triolet serve` has one model; the answers are the server's.
"""

import json
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, Route, WebSocketRoute, expect

from ...conftest import Server
from .visitor import ask, history, visit, wait_for_answers

DEMO = {"id": "triolet-demo", "max_model_len": 8192}
POET = {"id": "triolet-demo:poet", "parent": "triolet-demo"}
OTHER = {"id": "other", "max_model_len": 4096, "status": {"value": "unloaded"}}


class SeveralModels:
    """Lists more models than the server has, and lets its one model answer for all."""

    def __init__(self, page: Page) -> None:
        self.listed: list[object] = [DEMO, OTHER, POET]
        self.asked: list[str] = []
        page.route("**/v1/models", self._list)
        page.route_web_socket("**/v1/stream", self._stream)

    def _list(self, route: Route) -> None:
        route.fulfill(json={"data": self.listed})

    def _stream(self, socket: WebSocketRoute) -> None:
        upstream = socket.connect_to_server()

        def on_message(message: str | bytes) -> None:
            frame = json.loads(message)
            if frame["type"] == "create":
                self.asked.append(frame["request"]["model"])
                frame["request"]["model"] = "triolet-demo"
            upstream.send(json.dumps(frame))

        socket.on_message(on_message)


@pytest.fixture
def models(page: Page) -> Iterator[SeveralModels]:
    yield SeveralModels(page)
    page.unroute_all(behavior="ignoreErrors")  # the page asks for the list after each answer


def test_the_choice_of_a_model_belongs_to_its_conversation(page: Page, server: Server, models: SeveralModels) -> None:
    visit(page, server.url)
    picker = page.locator("#model")
    assert picker.locator("option").all_text_contents() == ["triolet-demo", "triolet-demo:poet", "other (not loaded)"]
    picker.select_option("other")
    expect(page.locator("#context")).to_be_empty()
    ask(page, "What is 1 + 2?")
    wait_for_answers(page, 1)
    page.get_by_role("button", name="New chat").click()
    ask(page, "What is 3 + 4?")
    wait_for_answers(page, 1)
    assert models.asked == ["other", "triolet-demo"]
    page.reload()
    expect(picker.locator("option:checked")).to_have_text("triolet-demo")
    history(page).get_by_role("button", name="What is 1 + 2?", exact=True).click()
    expect(picker).to_have_value("other")

    page.get_by_role("button", name="Settings", exact=True).click()
    chosen = page.get_by_role("complementary", name="Settings").get_by_label("Model", exact=True)
    expect(chosen).to_have_value("other")
    chosen.select_option("triolet-demo:poet")
    expect(picker).to_have_value("triolet-demo:poet")
    page.get_by_role("button", name="Retry").click()
    expect(page.locator(".versions").filter(visible=True)).to_have_text("2/2")
    wait_for_answers(page, 1)
    assert models.asked[2:] == ["triolet-demo:poet"]


def test_a_model_that_is_gone_is_named_and_another_one_answers(
    page: Page, server: Server, models: SeveralModels
) -> None:
    visit(page, server.url)
    picker = page.locator("#model")
    picker.select_option("other")
    models.listed = [DEMO]
    ask(page, "What is 1 + 2?")
    wait_for_answers(page, 1)
    note = page.locator("#note")
    expect(note).to_have_text("“other” is not served now: “triolet-demo” answers in its place.")  # without a reload
    page.reload()
    expect(note).to_contain_text("“other” is not served now")
    expect(picker.locator("option:checked")).to_have_text("other (not served)")
    ask(page, "What is 3 + 4?")
    wait_for_answers(page, 2)
    assert models.asked == ["other", "triolet-demo"]
    picker.select_option("triolet-demo")
    expect(note).to_be_empty()
    expect(picker).to_be_hidden()

"""The probabilities of an answer's tokens: by pointer, by keyboard, on other tabs; nothing where not asked."""

import json
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from ...conftest import Server
from .visitor import Held, answer, ask, history, hold_answers, letters, visit, wait_for_answers, wait_until_stored

QUESTION = "What is 1 + 2?"


def open_settings(page: Page) -> None:
    page.get_by_role("button", name="Settings", exact=True).click()
    page.locator(".group summary", has_text="Answer").click()


def switch_on(page: Page) -> None:
    open_settings(page)
    page.get_by_label("Token probabilities").check()
    page.get_by_label("Close the settings").click()


def sent_scores(frames: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [score for frame in frames for score in frame.get("logprobs", {}).get("content", [])]


def test_each_token_shows_its_alternatives_by_pointer_and_keyboard(page: Page, server: Server) -> None:
    frames: list[dict[str, Any]] = []
    page.on("websocket", lambda socket: socket.on("framereceived", lambda data: frames.append(json.loads(data))))
    visit(page, server.url)
    switch_on(page)
    ask(page, QUESTION)
    wait_for_answers(page, 1)
    scores = sent_scores(frames)
    tokens = page.get_by_role("listbox", name="Tokens of the answer").get_by_role("option")
    expect(tokens).to_have_count(len(scores))
    assert len(scores) > 2
    assert tokens.all_text_contents() == [score["token"] for score in scores]

    panel = page.locator(".scores-panel")
    expect(panel).to_be_hidden()
    tokens.nth(1).hover()
    expect(panel.locator(".score")).to_have_count(5)
    expect(panel.locator(".drawn")).to_contain_text("%")
    page.mouse.move(2, 2)
    expect(panel).to_be_hidden()

    page.get_by_role("listbox").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(tokens.nth(1)).to_have_attribute("aria-selected", "true")
    expect(panel).to_be_visible()
    page.keyboard.press("Home")
    expect(tokens.nth(0)).to_have_attribute("aria-selected", "true")
    page.keyboard.press("Escape")
    expect(panel).to_be_hidden()

    wait_until_stored(page, '"done"')
    page.reload()
    expect(tokens).to_have_count(len(scores))
    page.get_by_role("button", name="Tokens").click()
    expect(tokens).to_have_count(0)
    assert letters(answer(page)) == letters("".join(frame.get("text", "") for frame in frames))


def test_a_running_answer_grows_token_by_token_in_all_tabs(page: Page, server: Server) -> None:
    held: Held = hold_answers(page.context)
    other = page.context.new_page()
    visit(other, server.url)
    visit(page, server.url)
    switch_on(page)
    ask(page, QUESTION)
    expect(page.get_by_role("option")).not_to_have_count(0)
    history(other).get_by_role("button", name=QUESTION, exact=True).click()
    expect(other.get_by_role("option")).not_to_have_count(0)
    first = page.get_by_role("option").first.element_handle()
    held.go_on()
    wait_for_answers(page, 1)
    for tab in (page, other):
        expect(tab.get_by_role("option")).to_have_count(len(sent_scores(held.received)))
    assert first.evaluate("(node) => node.isConnected")  # what stands is not made again


def test_nothing_is_asked_or_kept_where_the_switch_is_off(page: Page, server: Server) -> None:
    held: Held = hold_answers(page.context)
    visit(page, server.url)
    ask(page, QUESTION)
    held.go_on()
    wait_for_answers(page, 1)
    created = [frame["request"] for frame in held.sent if frame["type"] == "create"]
    assert "logprobs" not in created[0]
    assert "top_logprobs" not in created[0]
    expect(page.get_by_role("button", name="Tokens")).to_have_count(0)
    expect(page.locator(".scores")).to_have_count(0)


def test_probabilities_of_a_part_never_hide_the_rest(page: Page, server: Server) -> None:
    """An answer that is cut and continued, with the switch on for its first part, for its second one, for both."""
    frames: list[dict[str, Any]] = []
    page.on("websocket", lambda socket: socket.on("framereceived", lambda data: frames.append(json.loads(data))))
    tokens = page.get_by_role("listbox", name="Tokens of the answer").get_by_role("option")
    visit(page, server.url)
    open_settings(page)
    for first, then in ((True, False), (False, True), (True, True)):
        frames.clear()
        page.get_by_role("button", name="New chat").click()
        page.get_by_label("Max tokens").fill("4")
        page.get_by_label("Token probabilities").set_checked(first)
        ask(page, "Tell me a story.")
        expect(page.locator(".stats")).to_contain_text("4 tokens")
        page.get_by_label("Token probabilities").set_checked(then)
        page.get_by_role("button", name="Continue").click()
        expect(page.locator(".stats")).to_contain_text("8 tokens")
        wait_for_answers(page, 1)
        whole = first and then
        expect(page.locator(".assistant .prose")).to_be_visible(visible=not whole)
        expect(tokens).to_have_count(8 if whole else 0)
        shown = "".join(tokens.all_text_contents()) if whole else answer(page)
        assert letters(shown) == letters("".join(frame.get("text", "") for frame in frames)), (first, then)


@pytest.mark.parametrize(
    ("scores", "texts"),
    [
        ('[["\ufffd", 0, [], [195]], ["\ufffd", 0, [], [169]]]', ["", "é"]),
        ('[["\ufffd", 0, [], null], ["b\\n", 0, [], null]]', ["\ufffd", "b\n"]),
    ],
    ids=["bytes of one character", "text"],
)
def test_a_character_of_several_tokens_is_whole(page: Page, server: Server, scores: str, texts: list[str]) -> None:
    page.goto(server.url)
    shown = page.evaluate(
        """async (text) => {
          const scores = JSON.parse(text);
          const { ScoresView } = await import("/static/scores.js");
          const view = new ScoresView();
          view.update(scores.slice(0, 1));
          view.update(scores);
          return [...view.node.querySelectorAll(".token")].map((node) => node.textContent);
        }""",
        scores,
    )
    assert shown == texts

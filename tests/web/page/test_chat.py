"""Asking and answering on the chat page, in a real Chromium against a real `triolet serve` with the bundled model."""

import json
import re
import urllib.request
from typing import Any

import pytest
from playwright.sync_api import Page, WebSocketRoute, expect

from ...conftest import Server
from ..chromium import ICONS_DRAWN, PATIENCE_MS, serving
from .visitor import answer, ask, history, letters, visit, wait_for_answers

STORY = "Tell me a short story about a fox and a lantern."

# Logs, in the order in which they happen in the page, each frame that arrives and each change of the text on the page.
WATCH = """
window.happened = [];
const Plain = window.WebSocket;
window.WebSocket = class extends Plain {
  constructor(...details) {
    super(...details);
    this.addEventListener("message", (event) => {
      const frame = JSON.parse(event.data);
      window.happened.push({ frame: frame.type, text: frame.text ?? "" });
    });
  }
};
addEventListener("DOMContentLoaded", () => {
  const messages = document.getElementById("messages");
  let before = "";
  new MutationObserver(() => {
    const text = messages.querySelector(".assistant:last-child .prose")?.textContent ?? "";
    if (text !== before) window.happened.push({ shown: text });
    before = text;
    if (text.length > 20) window.onceLong?.();
  }).observe(messages, { childList: true, subtree: true, characterData: true });
});
"""


def test_tokens_appear_as_their_frames_arrive(page: Page, server: Server) -> None:
    page.add_init_script(WATCH)
    frames: list[dict[str, Any]] = []
    page.on("websocket", lambda socket: socket.on("framereceived", lambda data: frames.append(json.loads(data))))
    visit(page, server.url)
    expect(page.get_by_role("heading", name="What can I help with?")).to_be_visible()
    ask(page, STORY)
    wait_for_answers(page, 1)

    happened: list[dict[str, Any]] = page.evaluate("window.happened")
    tokens = 0
    sent = ""
    for event, following in zip(happened, [*happened[1:], {}], strict=True):
        if event.get("frame") != "token" or not letters(event["text"]):
            continue
        tokens += 1
        sent += event["text"]
        # nothing comes between a frame and its text on the page: no timer, no later frame
        assert letters(following.get("shown", "")) == letters(sent)
    assert tokens >= 5
    assert letters("".join(frame["text"] for frame in frames if frame["type"] == "token")) == letters(answer(page))
    assert [frame["type"] for frame in frames if frame.get("id")][:2] == ["accepted", "started"]
    finished = frames[-1]
    assert (finished["type"], finished["reason"]) == ("finished", "stop")
    stats = page.locator(".stats").last.inner_text()
    assert f"{finished['usage']['completion_tokens']} tokens" in stats
    assert "tokens/s" in stats
    assert "first token" in stats


BY_KEY = "() => document.activeElement.dispatchEvent(new KeyboardEvent('keydown', { key: 'Escape', bubbles: true }))"
BY_BUTTON = "() => document.querySelector('button[aria-label=Stop]:not([hidden])').click()"


@pytest.mark.parametrize("stop", [BY_KEY, BY_BUTTON], ids=["key", "button"])
def test_stop_ends_a_long_answer(page: Page, server: Server, stop: str) -> None:
    sent: list[dict[str, Any]] = []

    def lengthen(route: WebSocketRoute) -> None:
        """The real server, asked for an answer that does not end by itself."""
        upstream = route.connect_to_server()

        def pass_on(message: str | bytes) -> None:
            frame = json.loads(message)
            sent.append(frame)
            if frame["type"] == "create":
                frame["request"] |= {"ignore_eos": True, "max_tokens": limit}
            upstream.send(json.dumps(frame))
            if frame["type"] == "create":  # it cannot reach its end, however slow this machine makes the page
                upstream.send(json.dumps({"type": "credit", "id": frame["id"], "tokens": 1}))

        route.on_message(pass_on)

    with urllib.request.urlopen(f"{server.url}/v1/models", timeout=60) as response:
        limit = json.load(response)["data"][0]["max_model_len"] - 100
    page.add_init_script(WATCH)
    page.route_web_socket("**/v1/stream", lengthen)
    visit(page, server.url)
    # in the page, because a click from here could come after a fast machine's last token
    page.evaluate(f"() => {{ window.onceLong = () => {{ window.onceLong = null; ({stop})(); }}; }}")
    ask(page, STORY)
    wait_for_answers(page, 1)
    assert [frame["type"] for frame in sent if frame["type"] != "explain"] == ["create", "cancel"]
    expect(page.locator(".stats")).to_contain_text("Stopped")
    expect(page.get_by_role("button", name="Send")).to_be_visible()
    tokens = int(page.locator(".stats").inner_text().split(" · ")[1].split()[0])
    assert 1 <= tokens < limit


def test_a_reload_keeps_the_conversation_and_deleting_can_be_undone(page: Page, server: Server) -> None:
    visit(page, server.url)
    ask(page, "What is 12 + 30?")
    wait_for_answers(page, 1)
    ask(page, "What is 40 + 50?")
    wait_for_answers(page, 2)
    before = page.locator("#messages").inner_text()
    page.reload()
    expect(page.locator("#messages")).to_have_text(before, use_inner_text=True)
    expect(history(page).get_by_role("button", name="What is 12 + 30?", exact=True)).to_be_visible()

    page.get_by_role("button", name="New chat").click()
    expect(page.locator("#messages")).to_be_empty()
    history(page).get_by_role("button", name="What is 12 + 30?", exact=True).click()
    expect(page.locator("#messages")).to_have_text(before, use_inner_text=True)
    page.get_by_role("button", name="Delete “What is 12 + 30?”").click()
    expect(history(page).get_by_role("listitem")).to_have_count(0)
    page.get_by_role("button", name="Undo").click()
    expect(page.locator("#messages")).to_have_text(before, use_inner_text=True)


def test_retry_makes_the_last_answer_anew_and_settings_go_with_the_request(page: Page, server: Server) -> None:
    sent: list[dict[str, Any]] = []
    page.on("websocket", lambda socket: socket.on("framesent", lambda data: sent.append(json.loads(data))))
    visit(page, server.url)
    page.get_by_role("button", name="Settings", exact=True).click()
    page.get_by_label("System prompt").fill("You answer briefly.")
    page.get_by_label("Temperature").fill("0")
    page.get_by_label("Max tokens").fill("6")
    page.get_by_role("button", name="Close the settings").click()
    ask(page, STORY)
    wait_for_answers(page, 1)
    first = answer(page)
    expect(page.locator(".stats")).to_contain_text("Cut at the token limit")
    page.get_by_role("button", name="Retry").click()
    wait_for_answers(page, 1)
    assert answer(page) == first  # temperature 0
    request, again = [frame["request"] for frame in sent if frame["type"] == "create"]
    assert request == again
    assert (request["temperature"], request["max_tokens"]) == (0, 6)
    assert [message["role"] for message in request["messages"]] == ["system", "user"]


def test_a_refused_request_says_why_and_can_be_retried(page: Page, server: Server) -> None:
    visit(page, server.url)
    page.get_by_role("button", name="Settings", exact=True).click()
    page.get_by_label("Max tokens").fill("1000000000")
    ask(page, "What is 1 + 1?")
    failure = page.get_by_role("alert")
    expect(failure).to_contain_text("max_tokens")
    page.get_by_label("Max tokens").fill("")
    failure.get_by_role("button", name="Retry").click()
    expect(page.locator(".assistant .prose").last).not_to_be_empty()
    wait_for_answers(page, 1)
    expect(failure).to_be_hidden()


def test_a_lost_server_is_said_and_found_again(page: Page) -> None:
    with serving() as first:
        port = first.port
        visit(page, first.url)
        ask(page, "What is 2 + 2?")
        wait_for_answers(page, 1)
    expect(page.locator("#status")).to_contain_text("Connection lost")
    ask(page, "What is 3 + 3?")  # waits for the connection
    page.get_by_role("button", name="Theme").click()  # an icon that was not drawn before
    page.wait_for_function(ICONS_DRAWN)
    with serving(port=port):
        expect(page.locator("#status")).to_have_text("Ready", timeout=PATIENCE_MS)
        wait_for_answers(page, 2)
        expect(page.get_by_role("alert").filter(visible=True)).to_have_count(0)


def test_a_key_is_asked_for_where_one_is_needed(page: Page, guarded: str) -> None:
    page.goto(guarded)
    key = page.get_by_label("API key", exact=True)
    key.fill("wrong")
    key.press("Enter")
    expect(page.get_by_text("did not accept that key")).to_be_visible()
    key.fill("right")
    key.press("Enter")
    expect(page.locator("#status")).to_have_text("Ready", timeout=PATIENCE_MS)
    ask(page, "What is 4 + 4?")
    wait_for_answers(page, 1)
    expect(page.get_by_role("alert").filter(visible=True)).to_have_count(0)
    page.reload()  # the tab remembers it
    expect(page.locator("#status")).to_have_text("Ready", timeout=PATIENCE_MS)


def test_it_fits_a_phone_and_keeps_the_theme(page: Page, server: Server) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    visit(page, server.url)
    ask(page, "Extract the name as JSON: Mia lives in Oslo. " + "Averylongwordwithoutanyspaces" * 5)
    wait_for_answers(page, 1)
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    page.get_by_role("button", name="Show the list of conversations").click()
    expect(page.get_by_role("button", name="New chat")).to_be_in_viewport()
    page.wait_for_function(ICONS_DRAWN)
    theme = page.get_by_role("button", name="Theme")
    theme.click()
    theme.click()
    expect(theme).to_have_text("Theme: dark")
    page.wait_for_function(ICONS_DRAWN)
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="New chat")).to_be_hidden()
    page.reload()
    assert page.evaluate("getComputedStyle(document.documentElement).colorScheme") == "dark"
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert all(int(part) < 64 for part in re.findall(r"\d+", background))


def test_the_examples_fit_the_model(page: Page, server: Server) -> None:
    visit(page, server.url)
    expect(page.locator(".example")).to_contain_text(["What is 347 + 285?"] + [""] * 5)  # the bundled model can do sums
    other = {"data": [{"id": "another-model", "max_model_len": 4096}]}
    page.route("**/v1/models", lambda route: route.fulfill(json=other))
    page.reload()
    expect(page.locator(".example")).to_have_count(6)
    expect(page.locator(".example").filter(has_text="347")).to_have_count(0)

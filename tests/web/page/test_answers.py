"""What becomes of a running answer: reloads, closed tabs and lost connections; what it waits for; what does not fit."""

import json
from typing import Any

import pytest
from playwright.sync_api import Page, Route, WebSocketRoute, expect

from ...conftest import Server
from ..chromium import serving
from .scripted import scripted
from .visitor import (
    HELD_TOKENS,
    Held,
    answer,
    ask,
    history,
    hold_answers,
    letters,
    visit,
    wait_for_answers,
    wait_until_stored,
)

STORY = "Tell me a story."
WITHOUT_LOCKS = "Object.defineProperty(Navigator.prototype, 'locks', { value: undefined })"  # as over plain HTTP


def begin_story(page: Page, server: Server) -> Held:
    held = hold_answers(page.context)
    visit(page, server.url)
    ask(page, STORY)
    expect(page.locator(".assistant .prose")).not_to_be_empty()
    return held


def expect_all_of_it(page: Page, held: Held) -> None:
    expect(page.locator(".stats")).to_contain_text(f"Cut at the token limit · {HELD_TOKENS} tokens")
    assert letters(answer(page)) == letters(held.text())


def test_a_reload_goes_on_with_the_running_answer(page: Page, server: Server) -> None:
    held = begin_story(page, server)
    page.reload()
    expect(page.locator(".assistant")).to_have_attribute("aria-busy", "true")
    expect(page.locator("#status")).to_have_attribute("data-state", "ready")
    held.go_on()
    expect_all_of_it(page, held)
    assert [frame["type"] for frame in held.sent if frame["type"] in ("create", "resume")] == ["create", "resume"]


@pytest.mark.parametrize("script", ["", WITHOUT_LOCKS], ids=["locks", "asking"])
def test_when_the_tab_that_follows_is_closed_another_one_does(page: Page, server: Server, script: str) -> None:
    page.context.add_init_script(script)
    held = begin_story(page, server)
    other = page.context.new_page()
    visit(other, server.url)
    history(other).get_by_role("button", name=STORY, exact=True).click()
    expect(other.locator(".assistant")).to_have_attribute("aria-busy", "true")
    page.close()
    held.go_on()
    expect_all_of_it(other, held)


@pytest.mark.parametrize("misdirected", [0, 2])
def test_an_answer_goes_on_over_the_next_connection(page: Page, server: Server, misdirected: int) -> None:
    held = begin_story(page, server)
    held.misdirected = misdirected
    held.sockets[-1].close()
    expect(page.locator("#status")).to_contain_text("Connection lost")
    expect(page.locator("#status")).to_have_text("Ready")
    held.go_on()
    expect_all_of_it(page, held)
    assert len(held.sockets) == 2 + misdirected


def test_a_stop_without_a_connection_reaches_the_server_with_the_next_one(page: Page, server: Server) -> None:
    held = begin_story(page, server)
    page.evaluate("() => { window.Plain = WebSocket; window.WebSocket = class { close() {} }; }")  # none opens
    held.sockets[-1].close()
    expect(page.locator("#status")).to_contain_text("Connection lost")
    page.get_by_role("button", name="Stop").click()
    expect(page.locator(".stats")).to_contain_text("Stopped")
    expect(page.locator("#status")).to_have_text("Connecting…")  # and it would stay so
    page.evaluate("() => { window.WebSocket = window.Plain; dispatchEvent(new Event('online')); }")
    expect(page.locator("#status")).to_have_text("Ready")
    assert [frame["type"] for frame in held.sent if frame["type"] != "explain"] == ["create", "resume", "cancel"]


def test_a_server_that_keeps_no_answers_still_answers(page: Page) -> None:
    with serving("--max-resume-seconds", "0") as started:
        visit(page, started.url)
        ask(page, "What is 1 + 2?")
        expect(page.locator(".assistant .prose")).not_to_be_empty()
        wait_for_answers(page, 1)
        expect(page.get_by_role("alert").filter(visible=True)).to_have_count(0)


def test_an_answer_that_the_server_lost_can_be_continued(page: Page, server: Server) -> None:
    held = begin_story(page, server)
    wait_until_stored(page, '"firstMs"')  # and some of its text: what is stored without any is asked for again
    held.forgetful = True
    page.reload()
    expect(page.locator(".stats")).to_contain_text("the server no longer has the rest")
    before = answer(page)
    page.get_by_role("button", name="Continue").click()
    expect(page.locator(".assistant")).to_have_attribute("aria-busy", "true")
    held.go_on()
    expect(page.locator(".stats")).to_contain_text("Cut at the token limit")
    assert letters(answer(page)).startswith(letters(before))
    request = [frame for frame in held.sent if frame["type"] == "create"][-1]["request"]
    assert request["continue_final_message"]
    assert [message["role"] for message in request["messages"]] == ["user", "assistant"]


def test_an_answer_cut_by_a_new_start_of_the_server_can_be_continued(page: Page, server: Server) -> None:
    held = begin_story(page, server)
    held.forgetful = True
    held.sockets[-1].close()
    expect(page.locator(".stats")).to_contain_text("the server no longer has the rest")
    expect(page.get_by_role("button", name="Continue")).to_be_visible()
    expect(page.get_by_role("alert").filter(visible=True)).to_have_count(0)


def test_a_question_is_asked_again_where_the_server_was_started_anew_before_it_answered(
    page: Page, server: Server
) -> None:
    sockets: list[WebSocketRoute] = []

    def accept_and_forget(socket: WebSocketRoute) -> None:
        sockets.append(socket)
        first = len(sockets) == 1

        def on_message(message: str | bytes) -> None:
            frame = json.loads(message)
            if frame["type"] == "create" and first:
                socket.send(json.dumps({"type": "accepted", "id": frame["id"], "seq": 0, "resume": "token"}))
                socket.close()
            elif frame["type"] == "resume":
                error = {"message": "No answer is kept.", "type": "x", "param": None, "code": "not_found"}
                socket.send(json.dumps({"type": "failed", "id": frame["id"], "seq": 0, "error": error}))
            else:
                upstream.send(message)

        upstream = socket.connect_to_server()
        socket.on_message(on_message)

    page.route_web_socket("**/v1/stream", accept_and_forget)
    visit(page, server.url)
    ask(page, "What is 1 + 2?")
    wait_for_answers(page, 1)
    expect(page.locator(".assistant .prose")).not_to_be_empty()
    expect(page.get_by_role("alert").filter(visible=True)).to_have_count(0)


def test_while_the_context_is_counted_clicks_repeat_nothing_and_stop_works(page: Page, server: Server) -> None:
    """As on a slow network."""
    sent: list[dict[str, Any]] = []
    page.on("websocket", lambda socket: socket.on("framesent", lambda data: sent.append(json.loads(data))))
    visit(page, server.url)
    ask(page, "What is 1 + 2?")
    wait_for_answers(page, 1)
    counting: list[Route] = []
    page.route("**/tokenize", lambda route: counting.append(route))
    page.get_by_role("button", name="Settings", exact=True).click()
    page.get_by_label("System prompt").fill("You answer briefly.")  # what was not counted before
    page.get_by_role("button", name="Retry").dblclick()
    expect(page.locator(".versions").filter(visible=True)).to_have_text("2/2")
    expect(page.locator(".assistant")).to_have_attribute("aria-busy", "true")
    page.get_by_role("button", name="Stop").click()
    expect(page.locator(".stats")).to_contain_text("Stopped")
    for route in counting:
        route.continue_()
    page.unroute("**/tokenize")
    page.get_by_role("button", name="Retry").click()
    expect(page.locator(".versions").filter(visible=True)).to_have_text("3/3")
    wait_for_answers(page, 1)
    assert [frame["type"] for frame in sent if frame["type"] != "explain"] == ["create", "create"]


def test_a_conversation_above_the_largest_message_is_offered_for_editing(page: Page, server: Server) -> None:
    def refuse(socket: WebSocketRoute) -> None:
        upstream = socket.connect_to_server()
        socket.on_message(
            lambda message: socket.close(code=1009) if '"create"' in str(message) else upstream.send(message)
        )

    page.route_web_socket("**/v1/stream", refuse)
    visit(page, server.url)
    ask(page, "What is 1 + 2?")
    failure = page.get_by_role("alert")
    expect(failure).to_contain_text("longer than the server takes")
    expect(failure.get_by_role("button", name="Edit the question")).to_be_visible()


def test_the_oldest_are_left_out_also_where_all_are_too_large_to_count(page: Page, server: Server) -> None:
    sent: list[dict[str, Any]] = []
    page.on("websocket", lambda socket: socket.on("framesent", lambda data: sent.append(json.loads(data))))

    def count(route: Route) -> None:
        messages = len(json.loads(route.request.post_data or "")["messages"])
        route.fulfill(status=413 if messages > 4 else 200, json={"count": messages})

    visit(page, server.url)
    for number in (1, 2, 3):
        ask(page, f"What is {number} + 2?")
        wait_for_answers(page, number)
    page.route("**/tokenize", count)
    ask(page, "What is 4 + 2?")
    wait_for_answers(page, 4)
    messages = [frame["request"]["messages"] for frame in sent if frame["type"] == "create"][-1]
    assert [message["content"] for message in messages if message["role"] == "user"] == [
        "What is 3 + 2?",
        "What is 4 + 2?",
    ]


def test_another_model_after_a_new_start_of_the_server_is_shown(page: Page, server: Server) -> None:
    held = hold_answers(page.context)
    visit(page, server.url)
    expect(page.locator("#model-name")).to_have_text("triolet-demo")
    other = {"data": [{"id": "another-model", "max_model_len": 4096}]}
    page.route("**/v1/models", lambda route: route.fulfill(json=other))
    held.sockets[-1].close()
    expect(page.locator("#model-name")).to_have_text("another-model")


def test_an_answer_that_waits_says_why(page: Page, server: Server) -> None:
    held = hold_answers(page.context)
    held.explanation = {
        "state": "waiting",
        "position": 3,
        "eta_ms": 4200,
        "prefill": None,
        "blocked_on": {"kind": "rows", "unit": "rows", "need": 1, "free": 0, "total": 64},
    }
    visit(page, server.url)
    ask(page, STORY)
    waiting = page.locator(".waiting")
    expect(waiting).to_have_text("Waiting because all places in the batch are taken (position 3, about 4 s)")
    held.explanation |= {"blocked_on": {"kind": "worker", "reason": "the worker was killed"}, "position": 1}
    expect(waiting).to_have_text("Waiting because the worker was killed (position 1, about 4 s)")
    held.explanation |= {"state": "prefill", "prefill": {"computed": 512, "total": 1024}}
    expect(waiting).to_have_text("Reading the conversation: 512 of 1,024 tokens")
    held.sockets[-1].send('{"type":"status","ready":false,"status":"restarting","reason":"it was killed: packing"}')
    expect(page.locator("#status")).to_have_text("The model is restarting")
    expect(page.locator("#status")).to_have_attribute("title", "it was killed: packing")
    held.sockets[-1].send('{"type":"status","ready":true,"status":"ready","reason":""}')
    expect(page.locator("#status")).to_have_text("Ready")
    page.get_by_role("button", name="Stop").click()
    expect(page.locator(".stats")).to_contain_text("Stopped")
    expect(waiting).to_be_empty()


def test_the_oldest_turns_are_left_out_of_a_long_conversation(page: Page, server: Server) -> None:
    sent = hold_answers(page.context).sent
    filler = "Please tell me all that you know about the sea. " * 240  # about 2,800 tokens; the context has 8,192
    old = {
        "id": "long",
        "title": "Long",
        "updated": 1,
        "messages": [
            {"role": role, "content": f"{number}. {filler if role == 'user' else 'Fine.'}", "state": "done"}
            for number in range(4)
            for role in ("user", "assistant")
        ],
    }
    visit(page, server.url)
    page.evaluate("(old) => localStorage.setItem('triolet.chat.long', JSON.stringify(old))", old)
    page.reload()
    history(page).get_by_role("button", name="Long", exact=True).click()
    expect(page.locator("#context")).to_contain_text("of 8,192 tokens: the oldest are left out")
    page.get_by_role("button", name="Settings", exact=True).click()
    page.get_by_label("System prompt").fill("You answer briefly.")
    ask(page, "What is 1 + 1?")
    expect(page.locator(".cut")).to_contain_text("no longer sees what is above")
    expect(page.locator(".assistant .prose").last).not_to_be_empty()
    messages = [frame for frame in sent if frame["type"] == "create"][-1]["request"]["messages"]
    assert messages[0]["content"] == "You answer briefly."
    kept = [message["content"].split(".")[0] for message in messages[1:]]
    assert kept[-3:] == ["3", "3", "What is 1 + 1?"]
    assert len(kept) in (3, 5, 7)  # whole turns, but not all
    assert page.locator(".cut ~ .message").count() == len(kept) + 1


def test_a_question_that_can_never_fit_is_offered_for_editing(page: Page, server: Server) -> None:
    visit(page, server.url)
    ask(page, "Please tell me all that you know about the sea. " * 1200)
    failure = page.get_by_role("alert")
    expect(failure).to_contain_text("maximum context length is 8192 tokens")
    expect(failure.get_by_role("button", name="Retry")).to_have_count(0)
    failure.get_by_role("button", name="Edit the question").click()
    page.get_by_label("Edit the question").fill("What is 1 + 1?")
    page.keyboard.press("Enter")
    expect(page.locator(".assistant .prose").last).not_to_be_empty()
    wait_for_answers(page, 1)


def test_thoughts_are_folded_above_the_answer(page: Page, server: Server) -> None:
    page.route_web_socket(
        "**/v1/stream", scripted(lambda question: "The answer is **42**.", thoughts="Let me see. Six by seven.")
    )
    visit(page, server.url)
    ask(page, "What is 6 * 7?")
    wait_for_answers(page, 1)
    expect(page.locator(".assistant summary")).to_have_text("Thought")
    expect(page.locator(".assistant details p")).to_be_hidden()
    expect(page.locator(".assistant details p")).to_have_text("Let me see. Six by seven.")
    expect(page.locator(".assistant .prose strong")).to_have_text("42")

"""Two answers to one question, with two settings: written at the same time, side by side, until one is chosen."""

import pytest
from playwright.sync_api import Locator, Page, expect

from ...conftest import Server
from .visitor import HELD_TOKENS, ask, hold_answers, visit, wait_for_answers, wait_until_stored

DESKTOP, PHONE = {"width": 1280, "height": 800}, {"width": 390, "height": 844}


def compare(page: Page) -> None:
    """What is typed into the fields then belongs to the second answer."""
    page.get_by_role("button", name="Settings", exact=True).click()
    page.get_by_label("Two answers to compare").check()
    expect(page.get_by_label("Second answer")).to_be_checked()


def close_settings(page: Page) -> None:
    page.get_by_role("button", name="Close the settings").click()


def side(page: Page, name: str) -> Locator:
    return page.get_by_role("group", name=f"{name} answer")


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_two_answers_grow_together_and_the_second_is_chosen(page: Page, server: Server, size: dict[str, int]) -> None:
    page.set_viewport_size({"width": size["width"], "height": size["height"]})
    held = hold_answers(page.context)
    visit(page, server.url)
    compare(page)
    page.get_by_label("Temperature").fill("0")
    page.get_by_label("First answer").check()
    expect(page.get_by_label("Temperature")).to_have_value("")
    page.get_by_label("Temperature").fill("0.5")
    page.get_by_label("Top k").fill("1")  # the same answer whenever this runs
    close_settings(page)
    expect(page.locator("#note")).to_have_text(
        "Each question gets two answers. First answer: Temperature: 0.5 · Top k: 1. "
        "Second answer: Temperature: 0 · Top k: default."
    )
    ask(page, "Tell me a story.")
    first, second = side(page, "First"), side(page, "Second")
    for one in (first, second):  # neither waits for the other's end
        expect(one.locator(".assistant[aria-busy=true] .prose")).not_to_be_empty()
    expect(first).to_have_accessible_name("First answer, Temperature: 0.5 · Top k: 1")
    assert {frame["request"]["temperature"] for frame in held.sent if frame["type"] == "create"} == {0.5, 0}
    boxes = [one.bounding_box() for one in (first, second)]
    assert boxes[0] is not None
    assert boxes[1] is not None
    assert boxes[0]["x" if size is DESKTOP else "y"] < boxes[1]["x" if size is DESKTOP else "y"]
    assert (boxes[0]["y"] == boxes[1]["y"]) is (size is DESKTOP)

    for answer in held.received:
        if answer["type"] == "accepted":
            wait_until_stored(page, f'"{answer["resume"]}","after":')
    page.reload()  # in the middle of both
    expect(page.locator(".assistant[aria-busy=true]")).to_have_count(2)
    expect(page.locator("#status")).to_have_attribute("data-state", "ready")
    held.go_on()
    wait_for_answers(page, 2)
    for one in (first, second):
        expect(one.locator(".stats")).to_contain_text(f"{HELD_TOKENS} tokens")
    assert [frame["type"] for frame in held.sent].count("resume") == 2

    ask(page, "And then?")  # with which of the two?
    expect(page.locator("#toast-text")).to_have_text("Choose the answer to go on with first.")
    choices = page.get_by_role("button", name="Go on with the")
    expect(choices.first).to_be_focused()
    kept = second.locator(".prose").inner_text()
    choices.last.press("Enter")
    expect(page.get_by_role("textbox", name="Message")).to_have_value("And then?")
    expect(page.locator(".pair")).to_have_count(0)
    expect(page.locator(".versions").filter(visible=True)).to_have_text("2/2")
    assert page.locator(".assistant .prose").inner_text() == kept
    page.get_by_role("textbox", name="Message").press("Enter")
    expect(page.locator(".assistant")).to_have_count(2)
    expect(page.locator(".pair")).to_have_count(0)
    expect(page.locator(".assistant .prose").last).not_to_be_empty()  # so its request has been sent
    *_, request = [frame["request"] for frame in held.sent if frame["type"] == "create"]
    assert request["temperature"] == 0  # its settings are the conversation's now


def test_one_of_two_fails_and_is_asked_again(page: Page, server: Server) -> None:
    visit(page, server.url)
    compare(page)
    page.locator(".group summary", has_text="Penalties").click()
    page.get_by_role("textbox", name="Logit bias").fill("99999999: 1")  # the model has no such token
    ask(page, "What is 1 + 2?")
    wait_for_answers(page, 2)
    first, second = side(page, "First"), side(page, "Second")
    failure = second.get_by_role("alert")
    expect(failure).to_contain_text("logit_bias: token ids must be below")
    expect(second.get_by_role("button", name="Go on with the")).to_be_hidden()
    expect(first.get_by_role("button", name="Go on with the")).to_be_visible()

    page.get_by_role("textbox", name="Logit bias").fill("5: 1")
    failure.get_by_role("button", name="Retry").click()
    expect(second.locator(".stats")).to_contain_text("tokens")
    expect(first.locator(".stats")).to_contain_text("tokens")
    wait_for_answers(page, 2)
    first.get_by_role("button", name="Go on with the").click()
    expect(page.locator(".versions").filter(visible=True)).to_have_text("1/3")  # the failed one is kept, too
    expect(page.get_by_label("Two answers to compare")).not_to_be_checked()
    page.get_by_label("Two answers to compare").check()  # with the settings that were there
    expect(page.get_by_role("textbox", name="Logit bias")).to_have_value("5: 1")


def test_two_answers_are_followed_and_stopped_in_another_tab(page: Page, server: Server) -> None:
    held = hold_answers(page.context)
    visit(page, server.url)
    compare(page)
    page.get_by_label("Token probabilities").evaluate("(node) => node.closest('details').open = true")
    page.get_by_label("Token probabilities").check()
    ask(page, "Tell me a story.")
    expect(side(page, "Second").get_by_role("option")).not_to_have_count(0)
    other = page.context.new_page()
    visit(other, server.url)
    other.locator(".chat-open").click()
    expect(side(other, "Second").get_by_role("option")).not_to_have_count(0)
    expect(side(other, "First").locator(".prose")).not_to_be_empty()
    other.keyboard.press("Escape")
    for tab in (page, other):
        expect(tab.locator(".stats", has_text="Stopped")).to_have_count(2)
    assert [frame["type"] for frame in held.sent].count("cancel") == 2

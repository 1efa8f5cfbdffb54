"""What stays in view, what must not lie over what, text from right to left, and the side bar on a narrow screen."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from ...conftest import Server
from ..chromium import fresh_page
from .scripted import sample, scripted
from .visitor import ask, visit, wait_for_answers

DESKTOP, PHONE = {"width": 1280, "height": 800}, {"width": 390, "height": 844}
ARABIC = "لماذا السماء زرقاء اليوم وما الذي يجعلها تبدو هكذا في كل مكان؟"
AT_END = "() => { const { scrollHeight, scrollTop, clientHeight } = document.getElementById('scroller'); return scrollHeight - scrollTop - clientHeight < 2; }"  # noqa: E501


@pytest.fixture(scope="module")
def chatting(browser: Browser, server: Server) -> Iterator[Page]:
    """A conversation longer than the screen, with an Arabic title."""
    with fresh_page(browser) as page:
        page.route_web_socket("**/v1/stream", scripted(lambda question: sample("code") + sample("mathematics")))
        page.emulate_media(reduced_motion="reduce")
        visit(page, server.url)
        ask(page, ARABIC)
        wait_for_answers(page, 1)
        yield page


def edges(locator: Locator) -> tuple[float, float]:
    """Its top and bottom."""
    box = locator.bounding_box()
    assert box is not None
    return box["y"], box["y"] + box["height"]


def test_the_end_stays_in_view_while_formulas_are_set(chatting: Page) -> None:
    expect(chatting.locator(".tex")).to_have_count(0)
    chatting.wait_for_function(AT_END)
    box = chatting.get_by_role("textbox", name="Message")
    box.fill("line\n" * 20)  # the message box takes room from the conversation
    chatting.wait_for_function(AT_END)
    box.fill("")


def test_a_burst_between_a_picture_and_its_scroll_event_does_not_lose_the_end(chatting: Page) -> None:
    chatting.evaluate(
        """() => {
          const scroller = document.getElementById("scroller");
          const more = document.createElement("p");
          more.style.height = "500px";
          document.getElementById("messages").append(more);
          scroller.dispatchEvent(new Event("scroll")); // that of the picture before
        }"""
    )
    chatting.wait_for_function(AT_END)
    chatting.evaluate("() => document.getElementById('messages').lastChild.remove()")
    chatting.mouse.move(700, 400)
    chatting.mouse.wheel(0, -400)  # but a reader who scrolls up is left alone
    to_end = chatting.get_by_role("button", name="Scroll to the newest message")
    expect(to_end).to_be_visible()
    to_end.click()
    chatting.wait_for_function(AT_END)


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_nothing_lies_over_the_message_box(chatting: Page, size: dict[str, int]) -> None:
    chatting.set_viewport_size({"width": size["width"], "height": size["height"]})
    box = chatting.get_by_role("textbox", name="Message")
    box.fill("line\n" * 20)
    chatting.locator("#scroller").evaluate("(node) => { node.scrollTop = 0; }")
    to_end = chatting.get_by_role("button", name="Scroll to the newest message")
    expect(to_end).to_be_visible()
    assert edges(to_end)[1] <= edges(chatting.locator(".box"))[0]
    chatting.evaluate(
        "async () => { const { toast } = await import('/static/panels.js'); toast('Deleted', 'Undo', () => {}); }"
    )
    assert edges(chatting.locator("#toast"))[1] <= edges(chatting.locator(".box"))[0]
    chatting.get_by_role("button", name="Undo").click()
    box.fill("")


def test_a_long_state_and_name_leave_the_settings_in_view_on_a_phone(chatting: Page) -> None:
    chatting.set_viewport_size({"width": 390, "height": 844})
    words = {
        "status-text": "The model is restarting: loading weights 45 %",
        "model-name": "organization/Model-3.1-8B-AWQ",
    }
    before = chatting.evaluate("() => document.getElementById('status-text').textContent")
    fill = "(words) => { for (const id in words) document.getElementById(id).textContent = words[id]; }"
    chatting.evaluate(fill, words)
    expect(chatting.get_by_role("button", name="Settings", exact=True)).to_be_in_viewport(ratio=1)
    for id in words:
        assert chatting.locator(f"#{id}").evaluate("(node) => node.getBoundingClientRect().width") > 80
    chatting.evaluate(fill, {"status-text": before, "model-name": "triolet-demo"})


def test_the_list_can_be_read_on_a_phone_on_its_side(chatting: Page) -> None:
    chatting.set_viewport_size({"width": 844, "height": 390})
    chatting.locator(".chat-open").scroll_into_view_if_needed()
    expect(chatting.locator(".chat-open")).to_be_in_viewport(ratio=1)


def test_the_focus_goes_to_the_message_box_when_its_button_goes(chatting: Page) -> None:
    chatting.set_viewport_size({"width": 1280, "height": 800})
    chatting.get_by_role("button", name="Retry").press("Enter")
    expect(chatting.get_by_role("textbox", name="Message")).to_be_focused()
    wait_for_answers(chatting, 1)


def test_right_to_left_titles_and_questions_begin_at_the_right(chatting: Page) -> None:
    chatting.set_viewport_size({"width": 1280, "height": 800})
    direction = "(node) => getComputedStyle(node).direction"
    assert chatting.locator(".chat-open").evaluate(direction) == "rtl"  # otherwise its beginning is cut off
    box = chatting.get_by_role("textbox", name="Message")
    assert box.evaluate(direction) == "ltr"
    box.fill(ARABIC)
    assert box.evaluate(direction) == "rtl"
    box.fill("")


def test_a_narrow_side_bar_keeps_the_keyboard_and_its_titles_off_the_buttons(chatting: Page) -> None:
    chatting.set_viewport_size({"width": 390, "height": 844})
    opens = chatting.get_by_role("button", name="Show the list of conversations")
    opens.click()
    title, tools = chatting.locator(".chat-open"), chatting.locator(".chat-tools")
    padding = float(title.evaluate("(node) => parseFloat(getComputedStyle(node).paddingRight)"))
    assert padding >= tools.evaluate("(node) => node.offsetWidth")
    outside = "() => document.activeElement !== document.body && !document.activeElement.closest('#sidebar')"
    for _ in range(12):  # more than it has
        chatting.keyboard.press("Tab")
        assert not chatting.evaluate(outside)
    chatting.locator("#search").press("Escape")
    expect(opens).to_be_focused()
    opens.click()
    chatting.set_viewport_size({"width": 1280, "height": 800})  # as when a tablet is turned
    chatting.get_by_role("textbox", name="Message").click()
    expect(chatting.get_by_role("textbox", name="Message")).to_be_focused()

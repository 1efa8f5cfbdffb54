"""The chat page for everybody: axe finds nothing, fingers hit the buttons, and a keyboard reaches all of it."""

from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from ...conftest import Server
from ..chromium import fresh_page
from .scripted import sample, scripted
from .visitor import ask, visit, wait_for_answers

DESKTOP, PHONE = {"width": 1280, "height": 800}, {"width": 390, "height": 844}
AXE = (files("axe_playwright_python") / "axe.min.js").read_text()
LEAST_TOUCH = 44  # pixels, as Apple and WCAG 2.5.5 ask for
# What can be clicked and is smaller. A link within a line of text may be; a label enlarges what it belongs to.
TOO_SMALL = """(least) => {
  const controls = [...document.querySelectorAll("button, a, summary, select, input, textarea, [role=button]")];
  return controls
    .filter((node) => node.checkVisibility({ visibilityProperty: true }) && !node.closest("p, .skip") && !node.disabled)
    .map((node) => [node, (node.labels?.[0]?.parentNode ?? node).getBoundingClientRect()])
    .filter(([, box]) => box.right > 0 && box.left < innerWidth && (box.width < least || box.height < least))
    .map(([node, box]) => `${node.outerHTML.slice(0, 120)}: ${Math.round(box.width)} x ${Math.round(box.height)}`);
}"""


@pytest.fixture(scope="module")
def filled(browser: Browser, server: Server) -> Iterator[Page]:
    """A conversation with everything that is rendered."""
    with fresh_page(browser) as page:
        page.route_web_socket("**/v1/stream", scripted(sample))
        page.emulate_media(reduced_motion="reduce")
        visit(page, server.url)
        for count, name in enumerate(("code", "mathematics", "arabic"), start=1):
            ask(page, name)
            wait_for_answers(page, count)
        expect(page.locator(".tex")).to_have_count(0)
        expect(page.locator(".c-keyword")).not_to_have_count(0)
        page.locator("summary").first.click()
        yield page


def look(page: Page, size: dict[str, int], theme: str) -> None:
    page.set_viewport_size({"width": size["width"], "height": size["height"]})
    page.emulate_media(color_scheme="dark" if theme == "dark" else "light", reduced_motion="reduce")


def findings(page: Page) -> str:
    page.wait_for_function("() => document.getAnimations().every((one) => one.playState === 'finished')")
    if not page.evaluate("() => 'axe' in window"):
        page.evaluate(AXE)
    violations: list[dict[str, Any]] = page.evaluate("async () => (await axe.run()).violations")
    return "\n".join(
        f"{found['id']}: {node['html']} {node['failureSummary']}" for found in violations for node in found["nodes"]
    )


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_axe_finds_nothing(filled: Page, size: dict[str, int], theme: str) -> None:
    look(filled, size, theme)
    assert findings(filled) == ""


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_axe_finds_nothing_in_the_settings(filled: Page, size: dict[str, int]) -> None:
    look(filled, size, "dark")
    filled.get_by_role("button", name="Settings", exact=True).click()
    for group in filled.locator(".group").all():
        group.evaluate("(node) => (node.open = true)")
    filled.get_by_label("Temperature").fill("5")
    assert findings(filled) == ""
    assert size is DESKTOP or filled.evaluate(TOO_SMALL, LEAST_TOUCH) == []
    filled.get_by_label("Temperature").fill("")
    filled.get_by_role("button", name="Close the settings").click()


def test_axe_finds_nothing_in_the_side_bar_of_a_phone(filled: Page) -> None:
    look(filled, PHONE, "light")
    filled.get_by_role("button", name="Show the list of conversations").click()
    expect(filled.get_by_role("button", name="New chat")).to_be_in_viewport()
    assert findings(filled) == ""
    assert filled.evaluate(TOO_SMALL, LEAST_TOUCH) == []
    filled.get_by_role("button", name="Close the list of conversations").click()
    expect(filled.get_by_role("button", name="New chat")).to_be_hidden()


def test_fingers_hit_what_can_be_clicked(filled: Page) -> None:
    look(filled, PHONE, "light")
    assert filled.evaluate(TOO_SMALL, LEAST_TOUCH) == []
    assert filled.evaluate("document.documentElement.scrollWidth") == PHONE["width"]


def test_axe_finds_nothing_in_two_answers_side_by_side(filled: Page) -> None:
    look(filled, PHONE, "light")
    filled.get_by_role("button", name="Settings", exact=True).click()
    filled.get_by_label("Two answers to compare").check()
    filled.get_by_label("Temperature").fill("0")
    assert findings(filled) == ""
    assert filled.evaluate(TOO_SMALL, LEAST_TOUCH) == []
    filled.get_by_role("button", name="Close the settings").click()
    ask(filled, "code")
    wait_for_answers(filled, 5)
    assert filled.evaluate(TOO_SMALL, LEAST_TOUCH) == []
    assert filled.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
    look(filled, DESKTOP, "dark")
    assert findings(filled) == ""
    filled.get_by_role("button", name="Go on with the first answer").click()


def test_a_keyboard_reaches_everything_and_sees_where_it_is(filled: Page) -> None:
    look(filled, DESKTOP, "light")
    filled.get_by_role("textbox", name="Message").focus()
    reached = filled.evaluate("() => { window.reached = new Set(); return 0; }")
    for _ in range(80):
        filled.keyboard.press("Tab")
        reached = filled.evaluate(
            """() => {
              const node = document.activeElement;
              const style = getComputedStyle(node);
              const box = node.closest(".box") ? getComputedStyle(node.closest(".box")) : style;
              if (node !== document.body && box.outlineStyle === "none") throw new Error(node.outerHTML);
              window.reached.add(node);
              return window.reached.size;
            }"""
        )
    # but the button that scrolls to the end: going on to it by keyboard has scrolled there
    missed = filled.evaluate(
        """() => [...document.querySelectorAll("button, a[href], summary, select, textarea, pre, .table, .formula")]
          .filter((node) => node.checkVisibility({ visibilityProperty: true }) && !node.disabled)
          .filter((node) => !window.reached.has(node) && node.id !== "to-end")
          .map((node) => node.outerHTML.slice(0, 100))"""
    )
    assert missed == []
    assert reached > 20


def test_motion_is_left_out_where_it_is_not_wanted(filled: Page) -> None:
    look(filled, PHONE, "light")
    durations = (
        "() => ['.sidebar', '.send'].map((name) => getComputedStyle(document.querySelector(name)).transitionDuration)"
    )
    assert all(float(word.rstrip("s")) < 0.001 for text in filled.evaluate(durations) for word in text.split(", "))

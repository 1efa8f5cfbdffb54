"""Makes the pictures of the chat page in docs/images/, by hand: `python -m tests.web.screenshot`.

The server is a real one with the bundled model. Where the picture needs what that model cannot write, the answers are
those in tests/web/page/samples/.
"""

from pathlib import Path

from playwright.sync_api import Browser, Page, expect

from .chromium import browsing, serving
from .page.scripted import sample, scripted
from .page.visitor import ask, visit, wait_for_answers

IMAGES = Path(__file__).parents[2] / "docs" / "images"
EARLIER = ("Count down from 12 to 3.", "Where does Anna live?", "A short story about a red fox")
OF_THE_BUNDLED_MODEL = (
    "What is 347 + 285?",
    "Give me the name, age and city as JSON: Mia lives in Oslo. She is 34 years old.",
    "How many centimeters are in 12 meters?",
)
DESKTOP, PHONE = (1280, 860), (390, 844)
QUESTIONS = {
    "How do I merge overlapping intervals in Python?": "code",
    "Where does the quadratic formula come from?": "mathematics",
    "لماذا السماء زرقاء؟": "arabic",
}


def open_page(browser: Browser, url: str, size: tuple[int, int], scheme: str, *, samples: bool = True) -> Page:
    context = browser.new_context(
        viewport={"width": size[0], "height": size[1]},
        color_scheme="dark" if scheme == "dark" else "light",
        device_scale_factor=2,
    )
    page = context.new_page()
    if samples:
        page.route_web_socket("**/v1/stream", scripted(lambda question: sample(QUESTIONS.get(question, "code"))))
    visit(page, url)
    return page


def take(page: Page, name: str) -> None:
    page.wait_for_function("() => !document.querySelector('.tex')")
    page.mouse.move(640, 4)
    page.wait_for_timeout(700)  # colours come in idle time, and the last fade ends
    page.screenshot(path=IMAGES / f"{name}.png")


def converse(page: Page, *names: str) -> None:
    for count, name in enumerate(names, start=1):
        ask(page, next(question for question, sample_name in QUESTIONS.items() if sample_name == name))
        wait_for_answers(page, count)


def to_top(page: Page) -> None:
    page.locator("#scroller").evaluate("(node) => (node.scrollTop = 0)")


def main() -> None:
    IMAGES.mkdir(parents=True, exist_ok=True)
    with serving() as server, browsing() as browser:
        page = open_page(browser, server.url, DESKTOP, "light", samples=False)
        for count, question in enumerate(OF_THE_BUNDLED_MODEL, start=1):
            ask(page, question)
            wait_for_answers(page, count)
        take(page, "bundled-model")
        page = open_page(browser, server.url, DESKTOP, "light")
        for question in EARLIER:
            ask(page, question)
            wait_for_answers(page, 1)
            page.get_by_role("button", name="New chat").click()
        expect(page.locator(".example")).not_to_have_count(0)
        take(page, "welcome")
        converse(page, "code")
        to_top(page)
        take(page, "chat")
        page.get_by_role("button", name="Settings", exact=True).click()
        take(page, "settings")
        page.get_by_role("button", name="Close the settings").click()
        page.get_by_role("button", name="New chat").click()
        converse(page, "mathematics")
        to_top(page)
        take(page, "mathematics")
        for theme, name in (("dark", "dark"), ("light", "right-to-left")):
            page = open_page(browser, server.url, DESKTOP, theme)
            converse(page, "code" if theme == "dark" else "arabic")
            to_top(page)
            take(page, name)
        page = open_page(browser, server.url, DESKTOP, "dark")
        converse(page, "code", "mathematics", "arabic")
        take(page, "long")
        page = open_page(browser, server.url, PHONE, "dark")
        take(page, "phone-welcome")
        converse(page, "code")
        to_top(page)
        take(page, "phone")


if __name__ == "__main__":
    main()

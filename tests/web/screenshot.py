"""Makes docs/chat.png of a running server, by hand: `python tests/web/screenshot.py http://127.0.0.1:8000`.

More pictures, for the eye only, go to the folder given as the second argument: a phone, and dark.
"""

import shutil
import sys
from pathlib import Path

from playwright.sync_api import Browser, Page, expect, sync_playwright

DOCS = Path(__file__).parents[2] / "docs"
EARLIER = (
    "Count down from 12 to 3.",
    "Tom lives in Rome. Anna lives in Paris. Where does Anna live?",
    "Who are you?",
    "Tell me a short story about a red fox called Emma who likes apples.",
)
CONVERSATION = (
    "What is 347 + 285?",
    "Give me the name, age and city as JSON: Mia lives in Oslo. She is 34 years old.",
    "How many centimeters are in 12 meters?",
)


def open_page(browser: Browser, url: str, size: tuple[int, int], scheme: str) -> Page:
    context = browser.new_context(
        viewport={"width": size[0], "height": size[1]},
        color_scheme="dark" if scheme == "dark" else "light",
        device_scale_factor=2,
    )
    page = context.new_page()
    page.goto(url)
    expect(page.locator("#status")).to_have_attribute("data-state", "ready")
    return page


def converse(page: Page, questions: tuple[str, ...]) -> None:
    for count, question in enumerate(questions, start=1):
        page.get_by_role("textbox", name="Message").fill(question)
        page.keyboard.press("Enter")
        expect(page.locator(".assistant[aria-busy=false]")).to_have_count(count, timeout=60_000)


def main() -> None:
    url, others = sys.argv[1], Path(sys.argv[2]) if len(sys.argv) > 2 else None
    chromium = shutil.which("chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = open_page(browser, url, (1280, 800), "light")
        for question in EARLIER:
            converse(page, (question,))
            page.get_by_role("button", name="New chat").click()
        if others is not None:
            page.screenshot(path=others / "welcome.png")
        converse(page, CONVERSATION)
        DOCS.mkdir(exist_ok=True)
        page.screenshot(path=DOCS / "chat.png")
        if others is not None:
            page.get_by_role("button", name="Settings", exact=True).click()
            page.screenshot(path=others / "settings.png")
            phone = open_page(browser, url, (390, 844), "dark")
            phone.screenshot(path=others / "phone-welcome.png")
            converse(phone, CONVERSATION)
            phone.screenshot(path=others / "phone.png")
        browser.close()


if __name__ == "__main__":
    main()

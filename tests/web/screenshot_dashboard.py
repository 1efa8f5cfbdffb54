"""Makes docs/dashboard.png of a running server, by hand: `python tests/web/screenshot_dashboard.py http://127.0.0.1:8000`.

The traffic is its own: chats with a common system prompt, questions about long texts, requests of several choices, and
more of them than fit. Start the server with `--max-running 14 --kv-cache-memory 48MiB`, so that some wait. The second
argument is a folder for more pictures, for the eye only: idle, dark, and a phone.
"""

import json
import random
import shutil
import sys
import threading
import time
import urllib.request
from pathlib import Path

from playwright.sync_api import Browser, Page, expect, sync_playwright

DOCS = Path(__file__).parents[2] / "docs"
CLIENTS = 26
WATCHED_SECONDS = 40.0
SYSTEM = "You are a helpful assistant. You answer politely and briefly, and you say so when you do not know. " * 6
QUESTIONS = (
    "Tell me a short story about a red fox called Emma who likes apples.",
    "Count down from 30 to 3.",
    "What is 347 + 285?",
    "Extract name, age and city as JSON: Mia is 34 years old, lives in Oslo and works as a nurse.",
)
WORDS = ("river", "stone", "lantern", "orchard", "harbour", "winter", "garden", "letter")


def ask(url: str, dice: random.Random) -> None:
    context = " ".join(dice.choices(WORDS, k=dice.choice((0, 0, 40, 150, 300))))
    body = {
        "messages": [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": f"{context} {dice.choice(QUESTIONS)}"},
        ],
        "max_tokens": dice.choice((60, 150, 400, 800)),
        "n": dice.choice((1, 1, 1, 1, 2)),
        "ignore_eos": True,
        "stream": True,
    }
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request) as response:
        while response.read(1 << 16):
            pass


def keep_asking(url: str, seed: int, until: float) -> None:
    dice = random.Random(seed)
    while time.monotonic() < until:
        ask(url, dice)
        if dice.random() < 0.5:
            time.sleep(dice.random())


def open_dashboard(browser: Browser, url: str, size: tuple[int, int], dark: bool) -> Page:
    context = browser.new_context(
        viewport={"width": size[0], "height": size[1]},
        color_scheme="dark" if dark else "light",
        device_scale_factor=1.5,
    )
    page = context.new_page()
    page.goto(f"{url}/dashboard")
    expect(page.locator("#status")).to_have_text("Live")
    return page


def main() -> None:
    url, others = sys.argv[1], Path(sys.argv[2]) if len(sys.argv) > 2 else None
    until = time.monotonic() + WATCHED_SECONDS + 15
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = open_dashboard(browser, url, (1440, 1185), dark=False)
        if others is not None:
            page.screenshot(path=others / "idle.png")
        for seed in range(CLIENTS):
            threading.Thread(target=keep_asking, args=(url, seed, until), daemon=True).start()
        page.wait_for_timeout(WATCHED_SECONDS * 1000)
        page.wait_for_function("() => document.querySelectorAll('#queue-rows tr').length >= 4")
        DOCS.mkdir(exist_ok=True)
        page.screenshot(path=DOCS / "dashboard.png")
        if others is not None:
            for name, size, dark in (("dark", (1440, 1185), True), ("phone", (390, 844), True)):
                other = open_dashboard(browser, url, size, dark)
                other.wait_for_timeout(3000)
                other.screenshot(path=others / f"{name}.png", full_page=name == "phone")
                other.context.close()
        browser.close()


if __name__ == "__main__":
    main()

"""The dashboard in a real Chromium, fed by a real `triolet serve` under real traffic."""

import json
import os
import re
import signal
import threading
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from playwright.sync_api import Page, expect

from ..chromium import ICONS_DRAWN, PATIENCE_MS, serving

# Two rows and 42 KV blocks. Two prompts of the traffic take 19 each: the next one waits for a row, and once the answers
# have grown by two blocks, one of them waits for blocks.
SMALL = ("--max-running", "2", "--kv-cache-memory", "4MiB")

HEADERS = {"Content-Type": "application/json", "Authorization": "Bearer right"}  # the key is for those that ask for one


@contextmanager
def traffic(url: str, streams: int) -> Generator[None]:
    """So many clients that ask for one long answer after the other, until the end of the block."""
    over = threading.Event()

    def client(number: int) -> None:
        while not over.is_set():
            body = {
                "prompt": f"{number} once upon a time there was a fox. " * 100,
                "max_tokens": 700,
                "ignore_eos": True,
                "stream": True,
            }
            request = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode(), HEADERS)
            with urllib.request.urlopen(request, timeout=60) as response:
                while not over.is_set() and response.readline():
                    pass

    clients = [threading.Thread(target=client, args=(number,)) for number in range(streams)]
    for each in clients:
        each.start()
    try:
        yield
    finally:
        over.set()
        for each in clients:
            each.join()


def ledger(url: str) -> dict[str, Any]:
    request = urllib.request.Request(f"{url}/internal/ledger", headers=HEADERS)
    with urllib.request.urlopen(request, timeout=60) as response:
        found: dict[str, Any] = json.load(response)
    return found


def visit(page: Page, url: str) -> None:
    page.goto(f"{url}/dashboard")
    expect(page.locator("#status")).to_have_attribute("data-state", "ready", timeout=PATIENCE_MS)


# Whether a row that was there before has more tokens than then, and a longer bar.
GROWN = """() => {
  window.seen ??= new Map();
  for (const row of document.querySelectorAll("#batch-rows tr:not([data-state=left])")) {
    const tokens = Number(row.cells[4].textContent.replace(",", ""));
    const width = parseFloat(row.querySelector(".generated").style.width);
    const before = window.seen.get(row.dataset.sequence);
    if (before && tokens > before.tokens && width > before.width) return true;
    window.seen.set(row.dataset.sequence, { tokens, width });
  }
  return false;
}"""

# How many of the rows in the batch have pixels of their colour in the map.
ON_THE_MAP = """() => {
  const canvas = document.getElementById("blocks");
  const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  const found = new Set();
  for (let at = 0; at < data.length; at += 4) found.add((data[at] << 16) | (data[at + 1] << 8) | data[at + 2]);
  const probe = document.createElement("canvas").getContext("2d");
  const near = [-1, 0, 1]; // rounding
  const known = (red, green, blue) => found.has((red << 16) | (green << 8) | blue);
  return [...document.querySelectorAll("#batch-rows tr:not([data-state=left]) .swatch")].filter((swatch) => {
    probe.fillStyle = getComputedStyle(swatch).backgroundColor;
    probe.fillRect(0, 0, 1, 1);
    const [red, green, blue] = probe.getImageData(0, 0, 1, 1).data;
    return near.some((r) => near.some((g) => near.some((b) => known(red + r, green + g, blue + b))));
  }).length;
}"""


def test_rows_grow_blocks_are_owned_and_the_queue_says_why(page: Page) -> None:
    with serving(*SMALL) as server:
        visit(page, server.url)
        expect(page.get_by_text("Nothing is running.")).to_be_visible()
        expect(page.get_by_text("Nobody waits.")).to_be_visible()
        assert page.evaluate(ON_THE_MAP) == 0
        with traffic(server.url, streams=5):
            page.wait_for_function(GROWN)
            page.wait_for_function(f"() => ({ON_THE_MAP})() >= 1")
            expect(page.get_by_text("Nothing is running.")).to_be_hidden()
            waiting = page.locator("#queue-rows tr")
            expect(waiting.and_(page.locator("[data-blocked=rows]")).first).to_contain_text("all 2 are taken")
            short = waiting.and_(page.locator("[data-blocked=blocks]")).first
            expect(short).to_contain_text(re.compile(r"[\d,]+ KV blocks?: \d+ available"))
            expect(page.locator("#tile-generating")).to_have_text(re.compile(r"[1-9][\d,.]*"))
            expect(page.locator("#sub-blocks")).to_have_text(re.compile(r"[1-9]\d* of 4\d blocks"))
            expect(page.get_by_role("img", name=re.compile(r"^4\d KV blocks: [1-9]\d* owned"))).to_be_visible()
            expect(page.locator("#step-note")).to_have_text(re.compile(r"mean of \d+"))
            expect(page.get_by_role("img", name=re.compile(r"[1-9][\d,]* tokens: half within"))).to_be_visible()
        expect(page.locator("#batch-rows tr")).to_have_count(0)
        expect(page.get_by_text("Nobody waits.")).to_be_visible()
        assert page.evaluate(ON_THE_MAP) == 0
        expect(page.locator("#tile-batch")).to_have_text("0")


def test_a_lost_worker_and_a_lost_server_are_said(page: Page) -> None:
    page.clock.install()
    with serving() as first:
        visit(page, first.url)
        worker = page.locator("#worker-facts div").filter(has_text="Process").locator("dd")
        expect(worker).to_have_text(re.compile(r"\d+, in memory"))
        os.kill(int(worker.inner_text().split(",")[0]), signal.SIGKILL)
        notice = page.get_by_role("alert")
        expect(notice).to_contain_text("The engine is restarting")
        restarts = page.locator("#worker-facts div").filter(has_text="Restarts").locator("dd")
        expect(restarts).to_have_text("1")
        expect(notice).to_be_hidden()
        expect(page.locator("#board")).to_have_attribute("data-live", "true")
    expect(notice).to_contain_text("The connection to the server was lost. These are the figures of")
    expect(page.locator("#status")).to_contain_text("Trying again")
    expect(page.locator("#board")).to_have_attribute("data-live", "false")
    page.clock.pause_at(datetime.now(UTC) + timedelta(hours=1))  # or the page tries by itself before the click
    with serving(port=first.port):
        page.get_by_role("button", name="Try now").click()
        page.clock.resume()
        expect(page.locator("#status")).to_have_text("Live", timeout=PATIENCE_MS)
        expect(notice).to_be_hidden()
        expect(restarts).to_have_text("0")


def test_from_the_chat_and_back_with_a_key(page: Page, guarded: str) -> None:
    page.goto(f"{guarded}/dashboard")
    key = page.get_by_label("API key", exact=True)
    key.fill("wrong")
    key.press("Enter")
    expect(page.get_by_text("did not accept that key")).to_be_visible()
    expect(page.locator("#board")).to_have_attribute("data-live", "false")
    key.fill("right")
    key.press("Enter")
    expect(page.locator("#status")).to_have_text("Live")
    page.get_by_role("link", name="Chat", exact=True).click()
    expect(page.locator("#status")).to_have_text("Ready")  # the tab remembers the key
    page.get_by_role("link", name="Dashboard").click()
    expect(page.locator("#status")).to_have_text("Live")
    page.wait_for_function(ICONS_DRAWN)
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    theme = page.get_by_role("button", name="Theme")
    theme.click()
    theme.click()
    page.reload()
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert all(int(part) < 64 for part in re.findall(r"\d+", background))


# How many web processes hold a row in the batch.
PROCESSES = """() => new Set([...document.querySelectorAll("#batch-rows tr:not([data-state=left]) .plate")]
  .map((plate) => plate.textContent).filter((text) => text.startsWith("web-"))).size"""


def test_with_several_web_processes_the_page_shows_the_rows_of_all(page: Page) -> None:
    with serving("--web-processes", "2", "--max-running", "6", "--api-key", "right") as several:
        tasks = ledger(several.url)["tasks"]
        page.goto(f"{several.url}/dashboard")
        page.get_by_label("API key", exact=True).fill("right")
        page.keyboard.press("Enter")
        expect(page.locator("#status")).to_have_text("Live")
        with traffic(several.url, streams=10):
            page.wait_for_function(f"() => ({PROCESSES})() === 2")
            page.wait_for_function(GROWN)
            expect(page.locator("#batch-rows .plate", has_text="key 1").first).to_be_visible()
            expect(page.locator("#queue-rows .plate", has_text="web-").first).to_be_visible()
            expect(page.get_by_role("img", name=re.compile(r"[1-9][\d,]* requests: half within"))).to_be_visible()
            processes = page.locator("#worker-facts div").filter(has_text="Web processes").locator("dd")
            expect(processes).to_have_text(re.compile(r"2, in memory [\d.]+ MiB"))
        expect(page.locator("#batch-rows tr")).to_have_count(0)
        page.context.close()  # and with it its connections; a page's alone may be used again
        while ledger(several.url)["tasks"] > tasks:
            pass  # a page that has gone leaves no task behind that could ask for a view

"""A real `triolet serve` with the bundled model and a real Chromium, for the tests of the pages."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

TRIOLET = str(Path(sys.executable).with_name("triolet"))
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
READY = re.compile(r"Triolet is ready at (http://127\.0\.0\.1:(\d+))\n")
PATIENCE_MS = 60_000  # only a hang takes so long; the deadline turns it into a failure


# Whether every icon that has room on the page is drawn: one that the file of icons does not have shows as nothing.
ICONS_DRAWN = """() => {
  const shown = [...document.querySelectorAll("svg use")].filter((icon) => icon.ownerSVGElement.checkVisibility());
  return shown.length > 2 && shown.every((icon) => icon.getBBox().width > 0);
}"""


class Server:
    def __init__(self, process: subprocess.Popen[str], url: str, port: int) -> None:
        self.process = process
        self.url = url
        self.port = port


@contextmanager
def serving(*options: str, port: int = 0) -> Generator[Server]:
    command = [TRIOLET, "serve", "--port", str(port), *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        ready = READY.fullmatch(line)
        assert ready is not None, f"the server did not start: {line!r}"
        yield Server(process, ready[1], int(ready[2]))
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@contextmanager
def browsing() -> Generator[Browser]:
    """A browser; skips the test where there is none, which in CI is a failure."""
    if CHROMIUM is None:
        message = "no Chromium on this machine: install the package chromium to test the page"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@contextmanager
def fresh_page(browser: Browser) -> Generator[Page]:
    """A page in a fresh profile; an error in its code or against its security policy fails the test, in any tab."""
    context: BrowserContext = browser.new_context(viewport={"width": 1280, "height": 800})
    context.set_default_timeout(PATIENCE_MS)
    errors: list[str] = []
    context.on("weberror", lambda error: errors.append(str(error.error)))
    context.on("console", lambda message: errors.extend([message.text] * ("Content Security" in message.text)))
    yield context.new_page()
    context.close()
    assert errors == []

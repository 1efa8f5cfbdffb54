"""A browser for all tests of the pages, each of which has a profile of its own, and the server that they share."""

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, Page

from ...conftest import Server
from ..chromium import browsing, fresh_page, serving
from .visitor import OUTBOX_TOKENS


@pytest.fixture(scope="session")
def server(serve_process: Callable[..., Server]) -> Server:
    """Its answers can be held after a few tokens, so that tests do not wait for hundreds on a busy machine."""
    return serve_process("--outbox-tokens", str(OUTBOX_TOKENS))


@pytest.fixture(scope="package")
def guarded() -> Iterator[str]:
    """The address of a server whose key is "right"."""
    with serving("--api-key", "right") as started:
        yield started.url


@pytest.fixture(scope="package")  # not longer: while it runs, an event loop of asyncio does in this thread
def browser() -> Iterator[Browser]:
    with browsing() as started:
        yield started


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    with fresh_page(browser) as opened:
        yield opened

"""What somebody does on the chat page."""

import json
import re
from typing import Any

from playwright.sync_api import BrowserContext, Locator, Page, WebSocketRoute, expect

from ..chromium import PATIENCE_MS

MISDIRECTED = {"message": "Another process has it.", "type": "server_error", "param": None, "code": "misdirected"}
OUTBOX_TOKENS = 16  # of the server: how far an answer is ahead of its credit
HELD_TOKENS = 50  # of a held answer; it waits after the first 17


def visit(page: Page, url: str) -> None:
    page.goto(url)
    expect(page.locator("#status")).to_have_attribute("data-state", "ready", timeout=PATIENCE_MS)


def ask(page: Page, text: str) -> None:
    page.get_by_role("textbox", name="Message").fill(text)
    page.keyboard.press("Enter")


def wait_for_answers(page: Page, count: int) -> None:
    expect(page.locator(".assistant[aria-busy=false]")).to_have_count(count, timeout=PATIENCE_MS)


def answer(page: Page) -> str:
    return page.locator(".assistant .prose").last.inner_text()


def history(page: Page) -> Locator:
    return page.get_by_role("navigation", name="Conversation history")


STORED = """(text) => new Promise((resolve) => {
  indexedDB.open("triolet").onsuccess = ({ target: { result: database } }) => {
    const found = [];
    const reading = database.transaction(["chats", "messages"]);
    for (const store of ["chats", "messages"]) {
      reading.objectStore(store).getAll().onsuccess = ({ target }) => found.push(...target.result);
    }
    reading.oncomplete = () => {
      database.close();
      resolve(JSON.stringify(found).includes(text));
    };
  };
})"""


def wait_until_stored(page: Page, text: str) -> None:
    """A reload right after a change may come before the browser has stored it."""
    page.wait_for_function(STORED, arg=text)


class Held:
    """The frames between the pages and the server. Each answer waits after its first tokens until `go_on`: the engine
    parks it for lack of credit, as it does for a slow reader. It does not end before `HELD_TOKENS`.
    """

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []  # by the pages
        self.received: list[dict[str, Any]] = []
        self.explanation: dict[str, Any] | None = None  # given instead of any answer
        self.forgetful = False  # the server knows no answer from before
        self.misdirected = 0  # so many times a `resume` reaches the wrong one of several web processes
        self.sockets: list[WebSocketRoute] = []  # to the pages
        self._servers: list[WebSocketRoute] = []
        self._credit = 1  # of each answer, when it begins or goes on over another socket

    def route(self, socket: WebSocketRoute) -> None:
        upstream = socket.connect_to_server()
        self.sockets.append(socket)
        self._servers.append(upstream)

        def to_server(message: str | bytes) -> None:
            frame = json.loads(message)
            self.sent.append(frame)
            if frame["type"] == "create":
                frame["request"] |= {"ignore_eos": True, "max_tokens": HELD_TOKENS}
                frame["credit"] = self._credit  # a frame of its own may come when the answer has ended
            elif frame["type"] == "resume" and self.forgetful:
                frame["resume"] += "x"
            elif frame["type"] == "resume" and self.misdirected:
                self.misdirected -= 1
                socket.send(json.dumps({"type": "failed", "id": frame["id"], "seq": 0, "error": MISDIRECTED}))
                return
            elif frame["type"] == "explain" and self.explanation is not None:
                explained = {"type": "explanation", "id": frame["id"], "explanation": self.explanation}
                socket.send(json.dumps(explained))
                return
            upstream.send(json.dumps(frame))
            if frame["type"] == "resume":
                self._grant(upstream, frame["id"])

        def to_page(message: str | bytes) -> None:
            frame = json.loads(message)
            self.received.append(frame)
            if self.explanation is None or frame["type"] == "finished":
                socket.send(message)

        socket.on_message(to_server)
        upstream.on_message(to_page)

    def go_on(self) -> None:
        self._credit = HELD_TOKENS
        for name in {frame["id"] for frame in self.sent if "id" in frame}:
            self._grant(self._servers[-1], name)

    def _grant(self, server: WebSocketRoute, name: str) -> None:
        server.send(json.dumps({"type": "credit", "id": name, "tokens": self._credit}))

    def text(self) -> str:
        """Of one answer, over whichever sockets it came."""
        texts = {frame["seq"]: frame["text"] for frame in self.received if frame["type"] == "token"}
        return "".join(texts[seq] for seq in sorted(texts))


def hold_answers(context: BrowserContext) -> Held:
    held = Held()
    context.route_web_socket("**/v1/stream", held.route)
    return held


def letters(text: str) -> str:
    """What Markdown cannot change."""
    return re.sub(r"[\W_]+", "", text)

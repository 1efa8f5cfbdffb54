"""Text files as part of a question: chosen, dropped or pasted; bounded by the context; binary files are refused."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, FilePayload, Page, expect

from ...conftest import Server
from ..chromium import fresh_page
from .visitor import visit, wait_for_answers

NOTES = "Anna has a cat.\n```\nTom has a dog.\n"  # a fence of its own
NOTES_FILE = FilePayload(name="notes.txt", mimeType="text/plain", buffer=NOTES.encode())
QUESTION = "What pet does Anna have?"
IN_THE_REQUEST = f"File: notes.txt\n````txt\n{NOTES}````\n\n{QUESTION}"
GIVE = """([how, name, text]) => {
  const data = new DataTransfer();
  data.items.add(new File([text], name));
  const details = { bubbles: true, cancelable: true };
  const event = how === "paste"
    ? new ClipboardEvent("paste", { ...details, clipboardData: data })
    : new DragEvent("drop", { ...details, dataTransfer: data });
  document.getElementById(how === "paste" ? "prompt" : "messages").dispatchEvent(event);
}"""


def test_a_chosen_file_is_part_of_the_question(page: Page, server: Server) -> None:
    sent: list[dict[str, Any]] = []
    page.on("websocket", lambda socket: socket.on("framesent", lambda data: sent.append(json.loads(data))))
    visit(page, server.url)
    page.locator("#attach-file").set_input_files(files=[NOTES_FILE])
    chip = page.get_by_role("list", name="Attached files").get_by_role("listitem")
    expect(chip).to_contain_text("notes.txt")
    expect(chip).to_contain_text("tokens")
    page.get_by_role("textbox", name="Message").fill(QUESTION)
    page.reload()  # the draft has the file, too
    expect(chip).to_contain_text("notes.txt")
    expect(page.get_by_role("textbox", name="Message")).to_have_value(QUESTION)
    page.keyboard.press("Enter")
    wait_for_answers(page, 1)
    expect(chip).to_have_count(0)
    asked = [frame["request"]["messages"] for frame in sent if frame["type"] == "create"]
    assert asked == [[{"role": "user", "content": IN_THE_REQUEST}]]
    expect(page.locator("#history")).to_contain_text(QUESTION)

    question = page.locator(".message.user")
    expect(question.get_by_text("Tom has a dog")).to_be_hidden()
    question.get_by_text("notes.txt").click()
    expect(question.get_by_text("Tom has a dog")).to_be_visible()
    question.get_by_role("button", name="Edit").click()
    box = page.get_by_label("Edit the question")
    expect(box).to_have_value(QUESTION)
    box.fill("What pet does Tom have?")
    page.keyboard.press("Enter")
    expect(page.locator(".versions").filter(visible=True)).to_have_text("2/2")
    wait_for_answers(page, 1)
    content = [frame["request"]["messages"] for frame in sent if frame["type"] == "create"][-1][-1]["content"]
    assert content == IN_THE_REQUEST.replace(QUESTION, "What pet does Tom have?")


def test_files_are_dropped_and_pasted_and_removed(page: Page, server: Server) -> None:
    visit(page, server.url)
    chips = page.get_by_role("list", name="Attached files").get_by_role("listitem")
    page.evaluate(GIVE, ["drop", "a.txt", "one"])
    expect(chips).to_have_count(1)
    page.evaluate(GIVE, ["paste", "b.txt", "two"])
    expect(chips).to_have_count(2)
    page.evaluate(GIVE, ["paste", "b.txt", "three"])  # a newer state of it
    expect(chips).to_have_count(2)
    page.get_by_role("button", name="Remove a.txt").click()
    expect(chips).to_have_count(1)
    expect(page.get_by_role("button", name="Send")).to_be_enabled()
    page.get_by_role("button", name="Remove b.txt").click()
    expect(page.get_by_role("button", name="Send")).to_be_disabled()


def test_files_chosen_together_must_fit_together(page: Page, server: Server) -> None:
    """The context has room for 7,680 tokens: for two of these files and a short one, and for no third."""
    visit(page, server.url)
    long = b"word " * 3000  # as many tokens
    files = [
        FilePayload(name=name, mimeType="text/plain", buffer=content)
        for name, content in (("a.txt", long), ("b.txt", long), ("c.txt", long), ("d.txt", long), ("e.txt", b"short"))
    ]
    page.locator("#attach-file").set_input_files(files=files)
    expect(page.locator("#attached .chip-name")).to_have_text(["a.txt", "b.txt", "e.txt"])
    expect(page.locator("#toast-text")).to_contain_text("“c.txt” does not fit beside the other files.")
    expect(page.locator("#toast-text")).to_contain_text("“d.txt” does not fit beside the other files.")


@pytest.fixture(scope="module")
def nothing_attached(browser: Browser, server: Server) -> Iterator[Page]:
    """Tests leave it so."""
    with fresh_page(browser) as opened:
        visit(opened, server.url)
        yield opened


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"\x89PNG\r\n\x1a\n\xff\xfe", "“it” is not a text file. Only plain text in UTF-8 can be attached."),
        (b"text\0", "“it” is not a text file. Only plain text in UTF-8 can be attached."),
        (b" \n", "“it” is empty."),
        (b"word " * 9000, "and the model's context has room for 7,680 tokens. Attach a part of it."),
        (b"x" * 200_000, "“it” is too long: 200,000 bytes, and the model's context has room for 7,680 tokens."),
    ],
    ids=["not UTF-8", "zero byte", "empty", "too many tokens", "too many bytes"],
)
def test_what_cannot_be_attached_is_refused(nothing_attached: Page, content: bytes, reason: str) -> None:
    page = nothing_attached
    file = FilePayload(name="it", mimeType="application/octet-stream", buffer=content)
    page.locator("#attach-file").set_input_files(files=[file])
    expect(page.locator("#toast-text")).to_contain_text(reason)
    expect(page.locator("#attached")).to_be_hidden()


def test_a_question_keeps_its_files_through_text_and_back(nothing_attached: Page) -> None:
    both = nothing_attached.evaluate(
        """async () => {
          const { filesIn, withFiles } = await import("/static/attached.js");
          const files = [{ name: "a.md", text: "```js\\n1\\n```" }, { name: "b `c`", text: "\\n\\n2" }];
          return [["x", files], ["", files], ["File: a\\nno fence", []], ["", []]].map(([typed, files]) =>
            [{ files, typed }, filesIn(withFiles(files, typed))]);
        }"""
    )
    for before, after in both:
        assert after == before

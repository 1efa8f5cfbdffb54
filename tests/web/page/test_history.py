"""The list of conversations: searching, renaming, deleting by keyboard, files; and copying without a clipboard API."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, FilePayload, Page, expect

from ...conftest import Server
from ..chromium import fresh_page
from .scripted import scripted
from .visitor import answer, ask, visit, wait_for_answers, wait_until_stored


def talk(page: Page, question: str) -> None:
    page.get_by_role("button", name="New chat").click()
    expect(page.locator(".message")).to_have_count(0)
    ask(page, question)
    wait_for_answers(page, 1)


def test_search_finds_titles_and_what_was_said(page: Page, server: Server) -> None:
    visit(page, server.url)
    talk(page, "What is 1 + 2?\nThe elephant asks.")
    talk(page, "What is 3 + 4?")
    search = page.get_by_label("Search the conversations")
    search.fill("ELEPHANT")
    expect(page.locator(".chat-open")).to_have_count(1)
    expect(page.locator(".snippet")).to_contain_text("The elephant asks.")
    search.fill("3 + 4?")
    expect(page.locator(".chat-open")).to_have_text(["What is 3 + 4?"])
    search.fill("zebra")
    expect(page.locator("#history")).to_have_text("Nothing found")
    search.press("Escape")
    expect(page.locator(".chat-open")).to_have_count(2)


def test_titles_and_snippets_have_whole_characters(page: Page, server: Server) -> None:
    visit(page, server.url)
    cut = "async ([text, begin, end]) => (await import('/static/search.js')).wholeCharacters(text, begin, end)"
    assert page.evaluate(cut, ["a🙂b", 0, 2]) == "a"
    assert page.evaluate(cut, ["a🙂b", 2, 4]) == "b"
    assert page.evaluate(cut, ["a🙂b", 0, 3]) == "a🙂"


def test_rename_and_delete_by_keyboard_keep_the_focus_in_the_list(page: Page, server: Server) -> None:
    visit(page, server.url)
    talk(page, "What is 1 + 2?")
    talk(page, "What is 3 + 4?")
    page.get_by_role("button", name="What is 1 + 2?", exact=True).press("F2")
    page.get_by_label("Name of the conversation").fill("Sums")
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Sums", exact=True)).to_be_focused()
    wait_until_stored(page, "Sums")
    page.reload()
    expect(page.get_by_role("button", name="Sums", exact=True)).to_be_visible()
    page.get_by_role("button", name="Rename “Sums”").press("Enter")
    page.get_by_label("Name of the conversation").fill("Not kept")
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Sums", exact=True)).to_be_focused()

    page.get_by_role("button", name="Delete “What is 3 + 4?”").press("Enter")
    expect(page.get_by_role("button", name="Sums", exact=True)).to_be_focused()
    page.get_by_role("button", name="Delete “Sums”").press("Enter")
    expect(page.get_by_role("button", name="New chat")).to_be_focused()


def test_undo_brings_back_the_conversation_as_it_was_last(page: Page, server: Server) -> None:
    page.route_web_socket("**/v1/stream", scripted(lambda question: f"You said {question}."))
    visit(page, server.url)
    ask(page, "one")
    wait_for_answers(page, 1)
    ask(page, "two")  # the list looks the same after it
    wait_for_answers(page, 2)
    page.get_by_role("button", name="Settings", exact=True).click()
    page.get_by_label("System prompt").fill("You answer briefly.")
    delete = page.get_by_role("button", name="Delete “one”")
    delete.evaluate("(button) => { button.click(); button.click(); }")
    expect(page.locator(".chat-open")).to_have_count(0)
    page.get_by_role("button", name="Undo").click()
    expect(page.locator(".bubble")).to_have_text(["one", "two"])
    expect(page.get_by_label("System prompt")).to_have_value("You answer briefly.")


def test_a_name_being_typed_outlives_what_other_tabs_do(page: Page, server: Server) -> None:
    page.context.route_web_socket("**/v1/stream", scripted(lambda question: f"You said {question}."))
    visit(page, server.url)
    talk(page, "one")
    talk(page, "two")
    other = page.context.new_page()
    visit(other, server.url)
    page.get_by_role("button", name="Rename “one”").click()
    name = page.get_by_label("Name of the conversation")
    name.fill("Letters")
    talk(other, "three")
    expect(page.locator(".chat-item")).to_have_count(3)
    expect(name).to_have_value("Letters")
    expect(name).to_be_focused()
    page.get_by_role("button", name="two", exact=True).click()  # one click ends the renaming and opens it
    expect(page.locator(".bubble")).to_have_text("two")
    expect(page.locator(".chat-open")).to_have_text(["three", "two", "Letters"])

    page.get_by_role("button", name="Rename “Letters”").click()
    name.fill("Gone")
    other.get_by_role("button", name="Delete “Letters”").click()
    expect(page.locator(".chat-open")).to_have_text(["three", "two"])
    page.reload()
    expect(page.locator(".chat-open")).to_have_text(["three", "two"])


def test_control_shift_o_begins_a_new_chat(page: Page, server: Server) -> None:
    visit(page, server.url)
    ask(page, "What is 1 + 2?")
    wait_for_answers(page, 1)
    page.get_by_role("button", name="Theme").focus()
    page.keyboard.press("Control+Shift+O")
    expect(page.locator(".message")).to_have_count(0)
    expect(page.get_by_role("textbox", name="Message")).to_be_focused()


def test_an_export_comes_back_as_a_copy_with_every_version(page: Page, server: Server) -> None:
    visit(page, server.url)
    talk(page, "What is 1 + 2?")
    page.get_by_role("button", name="Retry").click()
    expect(page.locator(".versions").filter(visible=True)).to_have_text("2/2")
    wait_for_answers(page, 1)
    shown = answer(page)
    page.get_by_role("button", name="Export and import").click()
    with page.expect_download() as markdown:
        page.get_by_role("button", name="This conversation as Markdown").click()
    assert markdown.value.suggested_filename == "What-is-1-2.md"
    text = Path(markdown.value.path()).read_text()
    assert text.startswith("# What is 1 + 2?\n\n## You\n\nWhat is 1 + 2?\n\n## Answer\n\n")
    assert shown in text

    page.get_by_role("button", name="Export and import").click()
    with page.expect_download() as exported:
        page.get_by_role("button", name="This conversation as JSON").click()
    page.get_by_role("button", name="Delete “What is 1 + 2?”").click()
    expect(page.locator(".chat-open")).to_have_count(0)
    for count in (1, 2):  # never over what is there
        page.locator("#import-file").set_input_files(exported.value.path())
        expect(page.locator(".chat-open")).to_have_count(count)
    page.reload()
    page.locator(".chat-open").first.click()
    wait_for_answers(page, 1)
    assert answer(page) == shown
    expect(page.locator(".versions").filter(visible=True)).to_have_text("2/2")


@pytest.fixture(scope="module")
def empty_page(browser: Browser, server: Server) -> Iterator[Page]:
    """Without conversations; tests leave it so."""
    with fresh_page(browser) as opened:
        visit(opened, server.url)
        yield opened


EMPTY: dict[str, object] = {}
ODD_SETTINGS: dict[str, object] = {"title": "x", "settings": {"temperature": 5}, "messages": [EMPTY]}
FIRST: dict[str, object] = {"id": "a", "parent": None, "role": "user", "content": "Hi", "created": 1}


def export(**fields: object) -> str:
    return json.dumps({"format": "triolet-conversations", "version": 1, "conversations": [], **fields})


def export_of(*messages: dict[str, object], title: str = "x") -> str:
    return export(conversations=[{"title": title, "messages": messages}])


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "This is not a JSON file."),
        ("[]", "not an export of conversations"),
        (export(version=2), "version 2 of the format; this page reads version 1"),
        (export(conversations=[None]), "Conversation 1 is not a conversation."),
        (export(conversations=[EMPTY]), "Conversation 1 has no title."),
        (export(conversations=[ODD_SETTINGS]), "settings that are not"),
        (export_of({}), "message 1: id is not a text"),
        (export_of(title=""), "Conversation 1 has no title."),
        (export_of(FIRST, FIRST), "two messages with one id"),
        (export_of(FIRST | {"role": "system"}), "role is neither"),
        (export_of(FIRST | {"content": 5}), "message 1: content is not a text"),
        (export_of(FIRST | {"parent": "b"}), "its parent is not in the file"),
        (export_of(FIRST | {"parent": "a"}), "do not begin anywhere"),
    ],
)
def test_a_file_that_is_no_export_is_refused_with_the_reason(empty_page: Page, text: str, problem: str) -> None:
    chosen: FilePayload = {"name": "file.json", "mimeType": "application/json", "buffer": text.encode()}
    empty_page.locator("#import-file").set_input_files(chosen)
    expect(empty_page.locator("#toast-text")).to_have_text(
        re.compile("“file.json” was not imported..*" + re.escape(problem))
    )
    expect(empty_page.locator(".chat-open")).to_have_count(0)


def test_copying_works_over_plain_http(page: Page, server: Server) -> None:
    page.add_init_script("Object.defineProperty(Navigator.prototype, 'clipboard', { value: undefined })")
    visit(page, server.url)
    ask(page, "What is 1 + 2?")
    wait_for_answers(page, 1)
    copy = page.locator(".assistant .below button").first
    copy.click()
    expect(copy).to_have_text("Copied")
    expect(copy).to_be_focused()
    page.get_by_role("textbox", name="Message").press("Control+V")
    expect(page.get_by_role("textbox", name="Message")).to_have_value(answer(page))

"""What becomes of conversations: branches and versions, several tabs, reloads, and a browser that stores nothing."""

from typing import Any

from playwright.sync_api import Page, expect

from ...conftest import Server
from .scripted import scripted
from .visitor import answer, ask, history, hold_answers, visit, wait_for_answers


def questions(page: Page) -> list[str]:
    return page.locator(".user .bubble").all_inner_texts()


def open_chat(page: Page, title: str) -> None:
    history(page).get_by_role("button", name=title, exact=True).click()


def second_tab(page: Page, server: Server, title: str) -> Page:
    other = page.context.new_page()
    visit(other, server.url)
    open_chat(other, title)
    return other


def test_two_tabs_in_one_conversation_lose_nothing(page: Page, server: Server) -> None:
    visit(page, server.url)
    ask(page, "What is 1 + 2?")
    wait_for_answers(page, 1)
    other = second_tab(page, server, "What is 1 + 2?")
    wait_for_answers(other, 1)
    ask(other, "What is 3 + 4?")
    wait_for_answers(other, 2)
    wait_for_answers(page, 2)
    ask(page, "What is 5 + 6?")
    wait_for_answers(page, 3)
    wait_for_answers(other, 3)
    all_of_them = ["What is 1 + 2?", "What is 3 + 4?", "What is 5 + 6?"]
    assert questions(page) == questions(other) == all_of_them
    page.reload()
    wait_for_answers(page, 3)
    assert questions(page) == all_of_them
    assert answer(page) == answer(other)


def test_an_answer_grows_in_every_tab_and_any_can_stop_it(page: Page, server: Server) -> None:
    hold_answers(page.context)
    visit(page, server.url)
    ask(page, "Tell me a story.")
    expect(page.locator(".assistant .prose")).not_to_be_empty()
    other = second_tab(page, server, "Tell me a story.")
    expect(other.locator(".assistant .prose")).not_to_be_empty()
    expect(other.locator(".assistant")).to_have_attribute("aria-busy", "true")
    expect(other.locator(".stats")).not_to_contain_text("Stopped")
    other.get_by_role("button", name="Stop").click()
    for tab in (page, other):
        expect(tab.locator(".stats")).to_contain_text("Stopped")
    assert answer(page) == answer(other)


def test_deleting_in_one_tab_stops_the_answer_in_the_other(page: Page, server: Server) -> None:
    held = hold_answers(page.context)
    visit(page, server.url)
    ask(page, "Tell me a story.")
    expect(page.locator(".assistant .prose")).not_to_be_empty()
    other = second_tab(page, server, "Tell me a story.")
    other.get_by_role("button", name="Delete “Tell me a story.”").click()
    expect(history(page).get_by_role("listitem")).to_have_count(0)
    expect(page.locator(".message")).to_have_count(0)
    page.wait_for_function("() => !document.getElementById('stop').checkVisibility()")
    assert [frame["type"] for frame in held.sent if frame["type"] != "explain"] == ["create", "cancel"]
    other.get_by_role("button", name="Undo").click()
    expect(history(page).get_by_role("button", name="Tell me a story.", exact=True)).to_be_visible()
    expect(other.locator(".stats")).to_contain_text("Stopped")


def test_retry_and_edit_keep_every_version(page: Page, server: Server) -> None:
    visit(page, server.url)
    ask(page, "What is 1 + 2?")
    wait_for_answers(page, 1)
    ask(page, "What is 3 + 4?")
    wait_for_answers(page, 2)
    page.get_by_role("button", name="Retry").first.click()
    wait_for_answers(page, 1)  # the second question belongs to the first answer's first version
    expect(page.locator(".versions").filter(visible=True)).to_have_text("2/2")
    page.get_by_role("button", name="Previous version of the answer").click()
    wait_for_answers(page, 2)
    assert questions(page) == ["What is 1 + 2?", "What is 3 + 4?"]

    page.locator(".user").last.hover()
    page.get_by_role("button", name="Edit").last.click()
    page.get_by_label("Edit the question").fill("What is 5 + 6?")
    page.keyboard.press("Enter")
    expect(page.locator(".user .bubble").last).to_have_text("What is 5 + 6?")
    wait_for_answers(page, 2)
    page.reload()
    wait_for_answers(page, 2)
    assert questions(page) == ["What is 1 + 2?", "What is 5 + 6?"]
    page.get_by_role("button", name="Previous version of the question").click()
    expect(page.locator(".user .bubble").last).to_have_text("What is 3 + 4?")
    expect(page.get_by_role("button", name="Next version of the question")).to_be_focused()


def test_escape_leaves_an_edit_and_the_settings_without_stopping_the_answer(page: Page, server: Server) -> None:
    held = hold_answers(page.context)
    visit(page, server.url)
    ask(page, "Tell me a story.")
    expect(page.locator(".assistant .prose")).not_to_be_empty()
    page.locator(".user").hover()
    page.get_by_role("button", name="Edit").click()
    page.keyboard.press("Escape")
    expect(page.get_by_label("Edit the question")).to_have_count(0)
    page.get_by_role("button", name="Settings", exact=True).click()
    page.keyboard.press("Escape")
    expect(page.get_by_label("System prompt")).to_be_hidden()
    expect(page.locator(".assistant")).to_have_attribute("aria-busy", "true")
    box = page.get_by_role("textbox", name="Message")
    box.dispatch_event("keydown", {"key": "Escape", "isComposing": True, "bubbles": True})  # it leaves an input method
    assert [frame["type"] for frame in held.sent if frame["type"] != "explain"] == ["create"]
    box.press("Escape")
    expect(page.locator(".stats")).to_contain_text("Stopped")


def test_drafts_and_settings_belong_to_their_conversation(page: Page, server: Server) -> None:
    visit(page, server.url)
    box = page.get_by_role("textbox", name="Message")
    page.get_by_role("button", name="Settings", exact=True).click()
    page.get_by_label("System prompt").fill("You answer briefly.")
    ask(page, "What is 1 + 2?")
    wait_for_answers(page, 1)
    box.fill("half a question")
    page.get_by_role("button", name="New chat").click()
    expect(box).to_have_value("")
    expect(page.get_by_label("System prompt")).to_have_value("")
    box.fill("another one")
    page.reload()
    expect(box).to_have_value("another one")
    open_chat(page, "What is 1 + 2?")
    expect(box).to_have_value("half a question")
    expect(page.get_by_label("System prompt")).to_have_value("You answer briefly.")
    page.get_by_role("button", name="Settings", exact=True).click()
    page.get_by_role("button", name="Save as defaults").click()
    page.get_by_role("button", name="New chat").click()
    expect(page.get_by_label("System prompt")).to_have_value("You answer briefly.")


def test_conversations_of_earlier_versions_are_taken_over(page: Page, server: Server) -> None:
    visit(page, server.url)
    old = {
        "id": "old",
        "title": "Since long",
        "updated": 1,
        "messages": [
            {"role": "user", "content": "Since long"},
            {"role": "assistant", "content": "**ago**", "state": "done", "stats": {"tokens": 3}},
            {"role": "user", "content": "And then?"},
            {"role": "assistant", "content": "it stops", "state": "streaming"},
        ],
    }
    page.evaluate("(old) => localStorage.setItem('triolet.chat.old', JSON.stringify(old))", old)
    page.reload()
    open_chat(page, "Since long")
    wait_for_answers(page, 2)
    assert questions(page) == ["Since long", "And then?"]
    expect(page.locator(".stats").last).to_contain_text("Stopped")
    assert page.evaluate("localStorage.getItem('triolet.chat.old')") is None
    page.reload()
    wait_for_answers(page, 2)


def test_without_indexeddb_the_page_says_so_and_works_until_it_is_closed(page: Page, server: Server) -> None:
    page.add_init_script("Object.defineProperty(window, 'indexedDB', { value: undefined })")
    visit(page, server.url)
    expect(page.locator("#storage")).to_contain_text("does not let the page store anything")
    ask(page, "What is 1 + 2?")
    wait_for_answers(page, 1)
    page.get_by_role("button", name="New chat").click()
    expect(page.locator(".message")).to_have_count(0)
    open_chat(page, "What is 1 + 2?")
    wait_for_answers(page, 1)


def test_when_the_site_s_data_are_deleted_the_open_conversation_goes_on(page: Page, server: Server) -> None:
    page.route_web_socket("**/v1/stream", scripted(lambda question: f"You said {question}."))
    visit(page, server.url)
    ask(page, "one")
    wait_for_answers(page, 1)
    devtools: Any = page.context.new_cdp_session(page)
    devtools.send("Storage.clearDataForOrigin", {"origin": server.url, "storageTypes": "indexeddb"})
    ask(page, "two")
    wait_for_answers(page, 2)
    expect(page.locator("#storage")).to_contain_text("does not store the conversations any more")
    page.get_by_role("button", name="New chat").click()
    open_chat(page, "one")
    expect(page.locator(".message").last).to_contain_text("You said two.")  # what was written since


def test_when_storage_is_full_the_page_says_so_and_stores_again_when_there_is_room(page: Page, server: Server) -> None:
    visit(page, server.url)
    devtools: Any = page.context.new_cdp_session(page)
    devtools.send("Storage.overrideQuotaForOrigin", {"origin": server.url, "quotaSize": 1})
    ask(page, "What is 1 + 2?")
    wait_for_answers(page, 1)
    expect(page.locator("#storage")).to_contain_text("no room left")
    page.get_by_role("button", name="New chat").click()
    ask(page, "What is 3 + 4?")
    wait_for_answers(page, 1)
    open_chat(page, "What is 1 + 2?")  # from memory
    expect(page.locator(".user .bubble")).to_have_text("What is 1 + 2?")
    devtools.send("Storage.overrideQuotaForOrigin", {"origin": server.url})
    page.get_by_role("button", name="Delete “What is 1 + 2?”").click()
    expect(page.locator("#storage")).to_have_text("Conversations are kept in this browser only.")
    page.reload()
    open_chat(page, "What is 3 + 4?")
    wait_for_answers(page, 1)

"""Code in the chat page as a whole: a long answer with all its colours, and the copy button."""

from playwright.sync_api import Page, expect

from ...conftest import Server
from .scripted import scripted
from .visitor import ask, visit, wait_for_answers


def test_three_thousand_lines_stream_and_get_their_colours(page: Page, server: Server) -> None:
    """What each update may cost is counted in test_prose_stream.py; long_tasks.py measures the page."""
    lines = "".join(f"    value_{number} = compute({number})  # line {number}\n" for number in range(3000))
    page.route_web_socket("**/v1/stream", scripted(lambda _: f"```python\n{lines}```\nDone.", characters=80))
    visit(page, server.url)
    ask(page, "code")
    wait_for_answers(page, 1)
    expect(page.locator(".prose > p")).to_have_text("Done.")
    expect(page.locator(".c-comment")).to_have_count(3000)
    assert page.locator("pre code").text_content() == lines.removesuffix("\n")
    assert page.locator(".piece").count() == 75


def test_copy_gives_the_code_without_its_last_line_break(page: Page, server: Server) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.route_web_socket("**/v1/stream", scripted(lambda _: "```sh\nls\n\npwd\n```"))
    visit(page, server.url)
    ask(page, "code")
    wait_for_answers(page, 1)
    page.locator(".code").get_by_role("button", name="Copy").click()
    expect(page.locator(".code").get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == "ls\n\npwd"
    selected = (
        "() => { getSelection().selectAllChildren(document.querySelector('pre')); return getSelection().toString(); }"
    )
    assert page.evaluate(selected) == "ls\n\npwd"

"""Copy as curl, Python and JavaScript: what the page copies is run, and gives the same answer."""

import json
import subprocess
from typing import Any

import pytest
from playwright.sync_api import Page, Route, expect

from ...conftest import Server
from .visitor import answer, ask, letters, visit, wait_for_answers

LANGUAGES = ("curl", "Python", "JavaScript")
QUESTION = 'What is 12 + 30? Don\'t say "$HOME" or `pwd`.'


def copied(page: Page, language: str) -> str:
    page.get_by_role("button", name="Copy as").last.click()
    entry = page.locator(".menu:popover-open .menu-entry").nth(LANGUAGES.index(language))
    expect(entry).to_contain_text(language)
    entry.click()
    expect(entry).to_have_text("Copied")
    page.keyboard.press("Escape")
    expect(page.locator(".menu:popover-open")).to_have_count(0)
    return str(page.evaluate("navigator.clipboard.readText()"))


def test_what_is_copied_gives_the_same_answer(page: Page, server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    visit(page, server.url)
    page.get_by_role("button", name="Settings", exact=True).click()
    page.get_by_label("System prompt").fill("You answer briefly.")
    page.get_by_label("Temperature").fill("0")
    page.get_by_label("Top k").fill("5")  # not an argument of OpenAI's client
    ask(page, "What is 1 + 2?")
    wait_for_answers(page, 1)
    ask(page, QUESTION)
    wait_for_answers(page, 2)
    shown = letters(answer(page))

    shell = copied(page, "curl")
    ran = subprocess.run(["sh", "-c", shell], capture_output=True, check=True, timeout=60)
    assert letters(json.loads(ran.stdout)["choices"][0]["message"]["content"]) == shown
    request = json.loads(shell.split("<<'JSON'\n")[1].removesuffix("JSON\n"))
    roles = [message["role"] for message in request["messages"]]
    assert roles == ["system", "user", "assistant", "user"]
    assert (request["temperature"], request["top_k"]) == (0, 5)

    exec(copied(page, "Python"), {})
    assert letters(capsys.readouterr().out) == shown

    program = copied(page, "JavaScript")
    assert run_in_browser(page, program) == {"base": f"{server.url}/v1", "request": request}


def run_in_browser(page: Page, program: str) -> Any:
    """The arguments that the program gives to OpenAI's client."""
    client = """class OpenAI {
      constructor({ baseURL }) { this.base = baseURL; }
      chat = { completions: { create: async (request) => {
        window.asked = { base: this.base, request };
        return { choices: [{ message: { content: "" } }] };
      } } };
    }"""
    imported = 'import OpenAI from "openai";'
    assert program.startswith(imported)

    def serve_program(route: Route) -> None:
        script = program.replace(imported, client)
        route.fulfill(content_type="text/html", body=f"<script type=module>{script}</script>")

    other = page.context.new_page()
    other.route("http://program.test/", serve_program)
    other.goto("http://program.test/")
    return other.evaluate("window.asked")


def test_the_key_is_not_copied(page: Page, server: Server) -> None:
    page.add_init_script("sessionStorage.setItem('triolet.key', JSON.stringify('a-secret'))")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    visit(page, server.url)
    ask(page, "What is 1 + 2?")
    wait_for_answers(page, 1)
    for language in LANGUAGES:
        program = copied(page, language)
        assert "a-secret" not in program
        assert '"none"' not in program

"""Tools on the chat page: described in the settings, called by the bundled model, answered by hand."""

import json

from playwright.sync_api import Page, expect

from ...conftest import Server
from .visitor import ask, visit, wait_for_answers

WEATHER = {
    "name": "get_weather",
    "description": "The weather in a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


def test_a_call_is_shown_and_its_result_answered(page: Page, server: Server) -> None:
    visit(page, server.url)
    page.get_by_role("button", name="Settings", exact=True).click()
    page.locator(".group summary", has_text="Tools and thinking").click()
    tools = page.get_by_label("Tools", exact=True)
    tools.fill("[{")
    expect(page.locator("#set-tools-wrong")).to_contain_text("Tools must be JSON")
    tools.fill(json.dumps([WEATHER]))
    expect(page.locator("#set-tools-wrong")).to_be_empty()
    page.get_by_label("Temperature").fill("0")
    page.keyboard.press("Escape")
    ask(page, "What is the weather in Rome?")
    expect(page.locator(".call code")).to_have_text('get_weather({"city": "Rome"})')
    page.get_by_label("Result of get_weather").fill('{"temperature": 21, "sky": "sunny"}')
    page.get_by_role("button", name="Send results").click()
    expect(page.locator(".assistant .prose").last).to_contain_text("It is sunny and 21 degrees in Rome.")
    wait_for_answers(page, 2)
    page.reload()
    expect(page.get_by_label("Result of get_weather")).to_have_value('{"temperature": 21, "sky": "sunny"}')
    expect(page.locator(".assistant .prose").last).to_contain_text("It is sunny and 21 degrees in Rome.")

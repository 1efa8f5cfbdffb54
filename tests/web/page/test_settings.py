"""The settings of a conversation: every sampling parameter, with the API's limits; a wrong value is never left out."""

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from playwright.sync_api import Browser, Page, expect

from triolet.protocol.openai_requests import ChatBody
from triolet.protocol.settings import LimitSettings
from triolet.web.openai.decode import neutral_values

from ...conftest import Server
from ..chromium import fresh_page
from .visitor import ask, visit, wait_for_answers

# What a request has besides its settings, or what only programs use.
ELSEWHERE = {
    *("messages", "model", "stream", "stream_options", "n", "best_of", "logprobs", "top_logprobs", "user"),
    *("max_completion_tokens", "add_generation_prompt", "continue_final_message", "add_special_tokens", "documents"),
    *("parallel_tool_calls", "tool_choice", "stop_regex", "grammar", "guided_choice", "guided_grammar"),
    *("guided_json", "guided_regex", "truncate_prompt_tokens", "prompt_logprobs", "return_token_ids"),
    *("chat_template_kwargs", "reasoning_effort", "echo", "return_tokens_as_token_ids", "truncation_side", "tools"),
    *("structured_outputs", "enable_thinking", "include_reasoning", "thinking_token_budget"),
    *("use_beam_search", "length_penalty", "early_stopping", "disconnect_policy", "deadline_ms", "ttft_deadline_ms"),
}
FIELDS = """async () => {
  const { GROUPS } = await import("/static/settings-fields.js");
  return GROUPS.flatMap(([, fields]) => fields);
}"""
READ = """async ([name, text]) => {
  const { GROUPS, read } = await import("/static/settings-fields.js");
  return read(GROUPS.flatMap(([, fields]) => fields).find((field) => field.name === name), text);
}"""


def schema() -> dict[str, dict[str, Any]]:
    """The parameters of a chat request that the server implements, each without its null."""
    properties = msgspec.json.schema(ChatBody)["$defs"]["ChatBody"]["properties"]
    found: dict[str, dict[str, Any]] = {}
    for name, entry in properties.items():
        options = [option for option in entry.get("anyOf", [entry]) if option.get("type") != "null"]
        if options and "type" in options[0] and name not in neutral_values(ChatBody):
            found[name] = options[0]
    return found


def open_settings(page: Page) -> None:
    page.get_by_role("button", name="Settings", exact=True).click()
    for summary in page.locator(".group summary").all()[1:]:
        summary.click()


def test_every_parameter_has_a_field_with_the_limits_of_the_api(page: Page, server: Server) -> None:
    visit(page, server.url)
    fields: dict[str, dict[str, Any]] = {field["name"]: field for field in page.evaluate(FIELDS)}
    parameters = {name: entry for name, entry in schema().items() if name not in ELSEWHERE}
    assert set(parameters) - set(fields) == set()
    for name, entry in parameters.items():
        if entry["type"] in ("number", "integer") and name not in ("seed", "max_tokens"):
            assert (fields[name]["least"], fields[name]["most"]) == (entry["minimum"], entry["maximum"]), name
    assert f"At most {LimitSettings().max_stop_strings}, of {LimitSettings().max_stop_length}" in fields["stop"]["help"]
    assert f"At most {parameters['stop_token_ids']['maxItems']}" in fields["stop_token_ids"]["help"]
    bad = parameters["bad_words"]
    assert f"At most {bad['maxItems']}, of {bad['items']['maxLength']}" in fields["bad_words"]["help"]
    assert f"At most {parameters['logit_bias']['maxProperties']}" in fields["logit_bias"]["help"]


@pytest.fixture(scope="module")
def reading(browser: Browser, server: Server) -> Iterator[Page]:
    """For what the modules of the page do: tests change nothing on it."""
    with fresh_page(browser) as opened:
        opened.goto(server.url)
        yield opened


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("temperature", " 0.5 ", 0.5),
        ("top_k", "-1", -1),
        ("stop", "END\n\\n\\n", ["END", "\n\n"]),
        ("stop_token_ids", "2, 32000", [2, 32000]),
        ("logit_bias", "12: -5\n7:0.5", {"12": -5, "7": 0.5}),
        ("skip_special_tokens", "false", False),
        ("determinism", "strict", "strict"),
        (
            "response_format",
            '{"type": "object"}',
            {"type": "json_schema", "json_schema": {"name": "answer", "schema": {"type": "object"}, "strict": True}},
        ),
    ],
)
def test_values_have_the_types_of_the_api(reading: Page, name: str, text: str, value: object) -> None:
    assert reading.evaluate(READ, [name, text]) == {"value": value}


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("temperature", "5", "Temperature must be a number from 0 to 2."),
        ("temperature", "0,5", "Temperature must be a number from 0 to 2."),
        ("top_k", "1.5", "Top k must be a whole number of at least -1."),
        ("max_tokens", "0", "Max tokens must be a whole number of at least 1."),
        ("max_tokens", "99999999999", "Max tokens must be a whole number of at most 2147483647."),
        ("stop", "x\n" * 17, "Stop strings: at most 16 lines; these are 17."),
        ("stop_token_ids", "2 x", "Stop token ids: “x” is not a token id. Write numbers with commas between."),
        ("logit_bias", "1: 200", "Logit bias: “1: 200” is not a token id, a colon and a number from -100 to 100."),
        ("response_format", "[1]", 'JSON schema must be an object, such as {"type": "object"}.'),
        ("cache_salt", "a b", "Cache salt may have 1 to 128 letters, digits, - and _."),
    ],
)
def test_wrong_values_are_named_with_their_limits(reading: Page, name: str, text: str, problem: str) -> None:
    assert reading.evaluate(READ, [name, text]) == {"problem": problem}


def test_a_wrong_value_is_marked_and_nothing_is_sent_until_it_is_mended(page: Page, server: Server) -> None:
    sent: list[dict[str, Any]] = []
    page.on("websocket", lambda socket: socket.on("framesent", lambda data: sent.append(json.loads(data))))
    visit(page, server.url)
    open_settings(page)
    temperature = page.get_by_label("Temperature")
    temperature.fill("5")
    expect(temperature).to_have_accessible_description(
        "0 always takes the likeliest token; more gives more varied answers. Temperature must be a number from 0 to 2."
    )
    expect(temperature).to_have_attribute("aria-invalid", "true")
    page.get_by_role("button", name="Close the settings").click()
    ask(page, "What is 1 + 1?")
    expect(temperature).to_be_focused()
    expect(page.get_by_role("textbox", name="Message")).to_have_value("What is 1 + 1?")
    assert [frame for frame in sent if frame["type"] == "create"] == []

    temperature.fill("0")
    page.get_by_label("Max tokens").fill("4")
    page.get_by_label("Stop strings").fill("xyz")
    page.get_by_label("Determinism").select_option("strict")
    page.get_by_role("textbox", name="Message").press("Enter")
    wait_for_answers(page, 1)
    (request,) = [frame["request"] for frame in sent if frame["type"] == "create"]
    settings = {name: request[name] for name in request.keys() - {"model", "messages", "disconnect_policy"}}
    assert settings == {"temperature": 0, "max_tokens": 4, "stop": ["xyz"], "determinism": "strict"}


def test_min_tokens_above_max_tokens_is_marked(page: Page, server: Server) -> None:
    visit(page, server.url)
    open_settings(page)
    page.get_by_label("Max tokens").fill("4")
    page.get_by_label("Min tokens").fill("9")
    expect(page.get_by_text("Min tokens is above Max tokens (4).")).to_be_visible()
    page.get_by_role("button", name="Reset to defaults").click()
    expect(page.get_by_label("Min tokens")).to_have_value("")
    expect(page.get_by_text("Min tokens is above")).to_be_hidden()


def test_an_answer_follows_a_json_schema_and_is_shown_as_code(page: Page, server: Server) -> None:
    visit(page, server.url)
    open_settings(page)
    field = page.get_by_label("JSON schema")
    field.fill('{"type":')
    expect(field).to_have_attribute("aria-invalid", "true")
    expect(page.locator("#set-response_format-wrong")).to_contain_text("JSON schema is not valid JSON: ")
    properties = {"fox": {"type": "boolean"}, "apples": {"enum": [3, 5]}}
    schema = {"type": "object", "properties": properties, "required": sorted(properties), "additionalProperties": False}
    field.fill(json.dumps(schema))
    page.get_by_label("Max tokens").fill("60")
    page.get_by_label("Temperature").fill("0")
    ask(page, "Tell me a short story.")
    wait_for_answers(page, 1)
    code = page.locator(".assistant .code code")
    expect(code.locator("span").first).to_be_visible()  # a colour
    shown = json.loads(code.inner_text())
    assert isinstance(shown["fox"], bool)
    assert shown["apples"] in (3, 5)

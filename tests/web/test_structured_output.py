"""Answers in a form, from `triolet serve` with its worker process and the bundled model: every finished one has it."""

import json
import re
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import httpx
import pytest
import trio
from openai import OpenAI
from pydantic import BaseModel
from trio_websocket import open_websocket_url

from triolet.loadtest.structured.answers import ask, fits
from triolet.loadtest.structured.schemas import random_schema

from ..conftest import Server

SOON = 120.0  # seconds: only a hang takes so long
QUESTION = [{"role": "user", "content": "Describe a person as JSON."}]
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
DATE = r"20[0-9]{2}-[01][0-9]"
GBNF = 'root ::= "yes" | "no" [!?]+'


def chat(server: Server, **fields: Any) -> httpx.Response:  # Any: JSON
    body = {"messages": QUESTION, "temperature": 1, "seed": 1, "max_tokens": 120} | fields
    return httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=SOON)


def content_of(reply: httpx.Response) -> str:
    assert reply.status_code == 200, reply.text
    choice = reply.json()["choices"][0]
    assert choice["finish_reason"] == "stop"
    text: str = choice["message"]["content"] if "message" in choice else choice["text"]
    return text


def schema_format(schema: object, **fields: object) -> dict[str, object]:
    return {"type": "json_schema", "json_schema": {"name": "it", "schema": schema, **fields}}


def test_random_schemas_are_kept(server: Server) -> None:
    schemas = [random_schema(Random(seed)) for seed in range(40)]
    with ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(ask, [server.url] * len(schemas), schemas, range(40)))
    wrong = [(schemas[at], *outcome) for at, outcome in enumerate(outcomes) if outcome[0] not in ("valid", "cut")]
    assert wrong == []
    assert Counter(outcome for outcome, _ in outcomes)["valid"] > 20


@pytest.mark.parametrize(
    ("fields", "form"),
    [
        ({"structured_outputs": {"regex": DATE}}, DATE),
        ({"guided_regex": DATE}, DATE),
        ({"structured_outputs": {"choice": ["perhaps", 'the "other"\n']}}, 'perhaps|the "other"\n'),
        ({"guided_choice": ["ä", "ö"]}, "[äö]"),
        ({"structured_outputs": {"grammar": 'start: "a" | "b" "c"'}}, "a|bc"),
        ({"guided_grammar": GBNF}, "yes|no[!?]+"),
        ({"grammar": GBNF}, "yes|no[!?]+"),
    ],
)
def test_every_field_gives_the_answer_its_form(server: Server, fields: dict[str, object], form: str) -> None:
    assert re.fullmatch(form, content_of(chat(server, **fields)))
    body = {"prompt": "Say", "temperature": 1, "max_tokens": 120, "seed": 2} | fields
    completion = httpx.post(f"{server.url}/v1/completions", json=body, timeout=SOON)
    assert re.fullmatch(form, content_of(completion))


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": schema_format(PERSON, strict=True)},
        {"response_format": schema_format(PERSON)},
        {"response_format": {"type": "json_object", "schema": PERSON}},
        {"structured_outputs": {"json": PERSON, "disable_any_whitespace": True}},
        {"guided_json": json.dumps(PERSON)},
    ],
)
def test_every_field_takes_a_schema(server: Server, fields: dict[str, object]) -> None:
    choices = chat(server, n=3, **fields).json()["choices"]
    assert all(fits(choice["message"]["content"], PERSON) for choice in choices)
    assert {choice["finish_reason"] for choice in choices} == {"stop"}


def test_a_stream_has_the_form_too(server: Server) -> None:
    reply = chat(server, response_format=schema_format(PERSON), stream=True)
    chunks = [json.loads(line[6:]) for line in reply.text.splitlines() if line.startswith("data: {")]
    assert fits("".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks), PERSON)


async def test_a_websocket_goes_on_while_a_grammar_is_compiled(server: Server) -> None:
    """The request that was made second ends first: the reader of the socket does not wait for the compiler."""
    slow: dict[str, Any] = {"messages": QUESTION, "guided_json": {"type": "integer", "multipleOf": 99999971}}
    ended: dict[str, dict[str, Any]] = {}
    frame: dict[str, Any] = {}
    text = ""
    with trio.fail_after(SOON):
        async with open_websocket_url(server.url.replace("http", "ws", 1) + "/v1/stream") as socket:
            for name, request in (("slow", slow), ("plain", {"messages": QUESTION, "max_tokens": 4})):
                await socket.send_message(json.dumps({"type": "create", "id": name, "request": request}))
            while len(ended) < 2:
                frame = json.loads(await socket.get_message())
                if frame["type"] in ("finished", "failed"):
                    ended[frame["id"]] = frame
            await socket.send_message(
                json.dumps({"type": "create", "id": "c", "request": {"prompt": "Say", "guided_choice": ["one", "two"]}})
            )
            while frame["type"] != "finished" or frame["id"] != "c":
                frame = json.loads(await socket.get_message())
                text += frame["text"] if frame["type"] == "token" else ""
    assert list(ended) == ["plain", "slow"]
    assert ended["slow"]["error"]["code"] == "invalid_grammar"
    assert text in ("one", "two")


def test_an_answer_that_is_cut_says_length(server: Server) -> None:
    choice = chat(server, response_format=schema_format(PERSON), max_tokens=4).json()["choices"][0]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["content"].startswith("{")


def test_a_json_object_may_have_any_fields(server: Server) -> None:
    choice = chat(server, response_format={"type": "json_object"}, max_tokens=300, temperature=0).json()["choices"][0]
    assert choice["message"]["content"].startswith("{")
    assert choice["finish_reason"] == "length" or isinstance(json.loads(choice["message"]["content"]), dict)


class Person(BaseModel):
    name: str
    age: int


def test_openais_client_parses_into_a_class(server: Server) -> None:
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        completion = client.chat.completions.parse(
            model="triolet-demo",
            messages=[{"role": "user", "content": "Extract the name and age: Anna is 31 years old and lives in Rome."}],
            response_format=Person,
            temperature=0,
        )
    assert completion.choices[0].message.parsed == Person(name="Anna", age=31)


TAGS: dict[str, object] = {
    "type": "object",
    "properties": {"tags": {"type": "array", "items": {"type": "string"}, "uniqueItems": True}},
}


def test_a_strict_schema_names_the_keyword_and_its_place(server: Server) -> None:
    error = chat(server, response_format=schema_format(TAGS, strict=True)).json()["error"]
    assert error["code"] == "invalid_grammar"
    assert error["param"] == "response_format.json_schema.schema.properties.tags"
    assert "uniqueItems" in error["message"]


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_a_strict_tool_names_the_keyword_and_its_place(server: Server, choice: str) -> None:
    parts = {"a": {"type": "object"}, "b": TAGS}
    tools = [
        {"type": "function", "function": {"name": name, "parameters": schema, "strict": True}}
        for name, schema in parts.items()
    ]
    error = chat(server, tools=tools, tool_choice=choice).json()["error"]
    param = "tools[1].function.parameters.properties.tags"
    assert (error["code"], error["param"]) == ("invalid_grammar", param)
    assert error["message"] == f'{param}: keywords that are not supported: "uniqueItems".'


def test_another_schema_is_followed_as_far_as_it_can_be_and_the_log_says_so(server: Server) -> None:
    reply = chat(server, response_format=schema_format(TAGS), max_tokens=20)
    assert reply.status_code == 200
    lines = [line for line in server.log.read_text().splitlines() if reply.headers["x-request-id"] in line]
    assert any("uniqueItems" in line and "WARNING" in line for line in lines)


def chain(length: int) -> dict[str, object]:
    steps = {f"d{at}": {"properties": {"a": {"$ref": f"#/$defs/d{at + 1}"}}} for at in range(length)}
    return {"$ref": "#/$defs/d0", "$defs": {**steps, f"d{length}": {"type": "null"}}}


# Each is refused, or compiled within the limits; which one may change with the library.
ADVERSARIAL: dict[str, dict[str, object]] = {
    "a huge enum": {"guided_json": {"enum": [f"value {at}" for at in range(15000)]}},
    "deep nesting": {"guided_regex": "(" * 5000 + "a" + ")" * 5000},
    "a long chain of references": {"guided_json": chain(4000)},
    "a circle of references": {"guided_json": {"$ref": "#"}},
    "an exponential automaton": {"guided_regex": "[01]*1[01]{1000}"},
    "nested repetitions": {"guided_regex": "((((a{1,1000}){1,1000}){1,1000}){1,1000}){1,1000}"},
    "large bounds": {"guided_regex": "(a|b){1,1000000}"},
    "a large multiple": {"guided_json": {"type": "integer", "multipleOf": 99999999}},
    "many intersections": {
        "guided_json": {"allOf": [{"type": "string", "pattern": f"(.*{chr(97 + at)}){{20}}"} for at in range(20)]}
    },
    "every product": {
        "guided_json": {"allOf": [{"anyOf": [{"properties": {f"{at}{to}": {}}} for to in "ab"]} for at in range(20)]}
    },
    "an ambiguous grammar": {"guided_grammar": 'start: s\ns: s s s | "a" | ""'},
}


def test_a_request_says_that_its_grammar_is_compiled(server: Server) -> None:
    slow = {"type": "integer", "multipleOf": 99999989}  # seconds of work, until a limit ends it
    with ThreadPoolExecutor(1) as pool:
        reply = pool.submit(
            httpx.post,
            f"{server.url}/v1/chat/completions",
            json={"messages": QUESTION, "guided_json": slow},
            headers={"X-Request-Id": "slow-grammar"},
            timeout=SOON,
        )
        states: list[str] = []
        while not reply.done() and "compiling" not in states:
            explained = httpx.get(f"{server.url}/v1/requests/slow-grammar", timeout=SOON)
            states += [explained.json()["state"]] if explained.status_code == 200 else []
    assert states[-1] == "compiling"
    assert reply.result().json()["error"]["code"] == "invalid_grammar"


def test_adversarial_grammars_end_alone(server: Server) -> None:
    """All at once, beside a stream that gets the text that it gets without them."""
    plain: dict[str, Any] = {"temperature": 0, "max_tokens": 60, "ignore_eos": True}
    alone = chat(server, **plain).json()["choices"][0]["message"]["content"]
    with ThreadPoolExecutor(len(ADVERSARIAL) + 1) as pool:
        replies = {name: pool.submit(chat, server, max_tokens=8, **fields) for name, fields in ADVERSARIAL.items()}
        beside = pool.submit(chat, server, **plain)
        assert beside.result().json()["choices"][0]["message"]["content"] == alone
        answers = {name: reply.result() for name, reply in replies.items()}
    for name, answer in answers.items():
        assert answer.status_code in (200, 400), f"{name}: {answer.text}"
        if answer.status_code == 400:
            assert answer.json()["error"]["code"] == "invalid_grammar"
    assert answers["a large multiple"].status_code == 400
    assert answers["a long chain of references"].status_code == 400
    assert fits(content_of(chat(server, response_format=schema_format(PERSON))), PERSON)

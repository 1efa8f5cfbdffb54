"""The bundled model calls a tool, reads its result and answers: the official client against a real server."""

import json
from collections.abc import Iterator
from typing import cast

import openai
import pytest
from openai import OpenAI
from openai.types.chat import (
    ChatCompletion,
    ChatCompletionMessageParam,
    ChatCompletionNamedToolChoiceParam,
    ChatCompletionToolChoiceOptionParam,
    ChatCompletionToolParam,
)

from ..conftest import Server

ASKS: ChatCompletionMessageParam = {"role": "user", "content": "What is the weather in Rome?"}
TOOLS: list[ChatCompletionToolParam] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather in a city.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def model(client: OpenAI) -> str:
    return client.models.list().data[0].id


def test_a_call_its_result_and_the_answer(client: OpenAI, model: str) -> None:
    first = client.chat.completions.create(model=model, messages=[ASKS], tools=TOOLS, temperature=0)
    choice = first.choices[0]
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
    assert choice.message.tool_calls is not None
    (call,) = choice.message.tool_calls
    assert call.type == "function"
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Rome"})
    result: ChatCompletionMessageParam = {
        "role": "tool",
        "tool_call_id": call.id,
        "content": '{"temperature": 21, "sky": "sunny"}',
    }
    said = cast("ChatCompletionMessageParam", first.choices[0].message.model_dump(exclude_none=True))
    answer = client.chat.completions.create(model=model, messages=[ASKS, said, result], tools=TOOLS, temperature=0)
    assert answer.choices[0].finish_reason == "stop"
    assert "sunny" in (answer.choices[0].message.content or "")


def test_a_streamed_call_is_put_together_by_the_client(client: OpenAI, model: str) -> None:
    with client.chat.completions.stream(model=model, messages=[ASKS], tools=TOOLS, temperature=0) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert "tool_calls.function.arguments.done" in kinds
    calls = final.choices[0].message.tool_calls
    assert calls is not None
    assert [(call.function.name, json.loads(call.function.arguments)) for call in calls] == [
        ("get_weather", {"city": "Rome"})
    ]
    assert final.choices[0].finish_reason == "tool_calls"


NAMED: ChatCompletionNamedToolChoiceParam = {"type": "function", "function": {"name": "get_weather"}}
STRICT: list[ChatCompletionToolParam] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "strict": True,
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "enum": ["Rome", "Oslo"]}, "days": {"type": "integer"}},
                "required": ["city", "days"],
                "additionalProperties": False,
            },
        },
    }
]


@pytest.mark.parametrize("choice", ["required", NAMED])
@pytest.mark.parametrize("stream", [False, True])
def test_a_call_that_must_come_comes(
    client: OpenAI, model: str, choice: ChatCompletionToolChoiceOptionParam, stream: bool
) -> None:
    """Whatever is said: the model would only greet."""
    hello: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Hello"}]
    completion: ChatCompletion
    if stream:
        with client.chat.completions.stream(
            model=model, messages=hello, tools=TOOLS, tool_choice=choice, temperature=0, max_tokens=200
        ) as events:
            deltas = [event for event in events if event.type == "tool_calls.function.arguments.delta"]
            completion = events.get_final_completion()
        assert len(deltas) > 2  # they come as they are written
    else:
        completion = client.chat.completions.create(
            model=model, messages=hello, tools=TOOLS, tool_choice=choice, temperature=0, max_tokens=200
        )
    assert completion.choices[0].finish_reason == "tool_calls"
    calls = completion.choices[0].message.tool_calls
    assert calls
    assert calls[0].type == "function"
    assert calls[0].function.name == "get_weather"
    assert set(json.loads(calls[0].function.arguments)) == {"city"}


@pytest.mark.parametrize("seed", range(5))
def test_a_strict_call_fits_its_schema(client: OpenAI, model: str, seed: int) -> None:
    """The city that is asked for is none of those that the schema has."""
    asks: ChatCompletionMessageParam = {"role": "user", "content": "What is the weather in Paris?"}
    answer = client.chat.completions.create(
        model=model, messages=[asks], tools=STRICT, temperature=1, seed=seed, max_tokens=200
    )
    for call in answer.choices[0].message.tool_calls or []:
        assert call.type == "function"
        arguments = json.loads(call.function.arguments)
        assert arguments["city"] in ("Rome", "Oslo")
        assert isinstance(arguments["days"], int)


def test_a_schema_that_cannot_be_followed_is_refused(client: OpenAI, model: str) -> None:
    odd: ChatCompletionToolParam = {
        "type": "function",
        "function": {"name": "f", "strict": True, "parameters": {"properties": {"a": {"type": "strong"}}}},
    }
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=model, messages=[ASKS], tools=[odd])
    param = "tools[0].function.parameters.properties.a"
    assert (caught.value.code, caught.value.param) == ("invalid_grammar", param)


def test_with_tool_choice_none_nothing_is_called(client: OpenAI, model: str) -> None:
    answer = client.chat.completions.create(
        model=model, messages=[ASKS], tools=TOOLS, tool_choice="none", temperature=0, max_tokens=60
    )
    assert answer.choices[0].message.tool_calls is None
    assert answer.choices[0].message.content


def test_a_call_of_a_function_that_was_not_offered_is_text(client: OpenAI, model: str) -> None:
    """The model copies what it reads: the system message shows it a tool that the request does not have."""
    system: ChatCompletionMessageParam = {"role": "system", "content": 'Tools:\nget_weather {"city": "string"}'}
    answer = client.chat.completions.create(model=model, messages=[system, ASKS], temperature=0)
    assert answer.choices[0].message.tool_calls is None
    assert "<tool_call>" in (answer.choices[0].message.content or "")


@pytest.mark.parametrize(
    ("tools", "param"),
    [
        ([TOOLS[0], TOOLS[0]], "tools[1].function.name"),
        ([{"type": "function", "function": {"name": "no spaces"}}], "tools[0].function.name"),
    ],
)
def test_wrong_tools_are_refused_with_their_path(
    client: OpenAI, model: str, tools: list[ChatCompletionToolParam], param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=model, messages=[ASKS], tools=tools)
    assert caught.value.param == param

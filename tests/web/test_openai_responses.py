"""OpenAI's own client reads /v1/responses of a real server: whole, streamed, with tools, and stored."""

import json
from collections.abc import Iterator

import openai
import pytest
from openai import OpenAI
from openai.types.responses import FunctionToolParam, ResponseInputParam
from pydantic import BaseModel

from ..conftest import Server

QUESTION = "What is 3 plus 4?"
WEATHER = "What is the weather in Rome?"
TOOL: FunctionToolParam = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather in a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "strict": False,
}


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def model(client: OpenAI) -> str:
    return client.models.list().data[0].id


def test_a_stream_ends_with_the_same_response(client: OpenAI, model: str) -> None:
    whole = client.responses.create(model=model, input=QUESTION, temperature=0)
    assert (whole.status, "7" in whole.output_text) == ("completed", True)
    with client.responses.stream(model=model, input=QUESTION, temperature=0) as stream:
        deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert "".join(deltas) == final.output_text == whole.output_text
    assert final.usage is not None
    assert whole.usage is not None
    assert final.usage.output_tokens == whole.usage.output_tokens


def test_the_length_of_a_prompt(client: OpenAI, model: str) -> None:
    answer = client.responses.create(model=model, input=QUESTION, instructions="Be brief.", max_output_tokens=1)
    count = client.responses.input_tokens.count(model=model, input=QUESTION, instructions="Be brief.")
    assert answer.usage is not None
    assert count.input_tokens == answer.usage.input_tokens


def test_a_cut_answer_is_incomplete(client: OpenAI, model: str) -> None:
    answer = client.responses.create(model=model, input=QUESTION, temperature=0, max_output_tokens=2)
    assert answer.status == "incomplete"
    assert answer.incomplete_details is not None
    assert answer.incomplete_details.reason == "max_output_tokens"


def test_a_conversation_goes_on_after_a_cut_call(client: OpenAI, model: str) -> None:
    cut = client.responses.create(
        model=model,
        input=WEATHER,
        tools=[TOOL],
        tool_choice="required",
        temperature=0,
        max_output_tokens=18,
        store=True,
    )
    (call,) = cut.output
    assert call.type == "function_call"
    assert (cut.status, call.arguments) == ("incomplete", '{"city": "Rome')
    answer = client.responses.create(model=model, input=QUESTION, previous_response_id=cut.id, temperature=0)
    assert answer.status == "completed"


def test_a_call_its_result_and_the_answer(client: OpenAI, model: str) -> None:
    first = client.responses.create(model=model, input=WEATHER, tools=[TOOL], temperature=0)
    (call,) = first.output
    assert call.type == "function_call"
    assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Rome"})
    result = '{"temperature": 21, "sky": "sunny"}'
    items: ResponseInputParam = [
        {"role": "user", "content": WEATHER},
        call.model_dump(),  # type: ignore[list-item]  # as OpenAI's guide sends it back
        {"type": "function_call_output", "call_id": call.call_id, "output": result},
    ]
    answer = client.responses.create(model=model, input=items, tools=[TOOL], temperature=0)
    assert "sunny" in answer.output_text


def test_a_streamed_call(client: OpenAI, model: str) -> None:
    with client.responses.stream(model=model, input=WEATHER, tools=[TOOL], temperature=0) as stream:
        done = [event for event in stream if event.type == "response.function_call_arguments.done"]
        final = stream.get_final_response()
    assert [json.loads(event.arguments) for event in done] == [{"city": "Rome"}]
    assert [item.type for item in final.output] == ["function_call"]


def test_a_stored_conversation(client: OpenAI, model: str) -> None:
    first = client.responses.create(model=model, input=WEATHER, tools=[TOOL], temperature=0, store=True)
    (call,) = first.output
    assert call.type == "function_call"
    second = client.responses.create(
        model=model,
        input=[{"type": "function_call_output", "call_id": call.call_id, "output": '{"sky": "sunny"}'}],
        tools=[TOOL],
        temperature=0,
        previous_response_id=first.id,
        store=True,
    )
    assert "sunny" in second.output_text
    assert client.responses.retrieve(second.id).output_text == second.output_text
    assert [item.type for item in client.responses.input_items.list(second.id)] == ["function_call_output"]
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.create(model=model, input="And tomorrow?", previous_response_id=second.id)


class Sum(BaseModel):
    result: int


def test_a_format_is_parsed(client: OpenAI, model: str) -> None:
    answer = client.responses.parse(model=model, input=QUESTION, text_format=Sum, temperature=0)
    assert isinstance(answer.output_parsed, Sum)


def test_a_prompt_that_does_not_fit(client: OpenAI, model: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(model=model, input="a " * 10_000)
    assert (refused.value.code, refused.value.param) == ("context_length_exceeded", "input")

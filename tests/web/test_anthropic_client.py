"""The official client of Anthropic against `triolet serve` over TCP, with its worker process and the bundled model."""

import json
from collections.abc import Iterator

import anthropic
import pytest
from anthropic import Anthropic
from anthropic.types import ImageBlockParam, Message, MessageParam, OutputConfigParam, ToolChoiceParam, ToolParam

from ..conftest import Server

MODEL = "triolet-demo"
GREEDY = {"temperature": 0}  # no longer a parameter of the client's methods, but still of the API
ADD: MessageParam = {"role": "user", "content": "What is 3 plus 4?"}
ASKS: MessageParam = {"role": "user", "content": "What is the weather in Rome?"}
WEATHER: ToolParam = {
    "name": "get_weather",
    "description": "The weather in a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[Anthropic]:
    with Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        yield client


def test_a_message_streamed_and_whole(client: Anthropic) -> None:
    whole = client.messages.create(model=MODEL, max_tokens=20_000, messages=[ADD], extra_body=GREEDY)
    (block,) = whole.content
    assert block.type == "text"
    assert (whole.stop_reason, whole.role, whole.model) == ("end_turn", "assistant", MODEL)
    with client.messages.stream(model=MODEL, max_tokens=64, messages=[ADD], extra_body=GREEDY) as stream:
        pieces = list(stream.text_stream)
        message = stream.get_final_message()
    assert "".join(pieces) == block.text
    assert len(pieces) > 1
    assert message.stop_reason == "end_turn"
    usage, other = message.usage, whole.usage
    assert usage.output_tokens == other.output_tokens
    assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == (
        other.input_tokens + (other.cache_read_input_tokens or 0)
    )


def test_a_prompt_has_as_many_tokens_as_are_counted(client: Anthropic) -> None:
    counted = client.messages.count_tokens(model=MODEL, system="Be kind.", messages=[ADD], tools=[WEATHER])
    answer = client.messages.create(model=MODEL, max_tokens=1, system="Be kind.", messages=[ADD], tools=[WEATHER])
    assert counted.input_tokens == answer.usage.input_tokens + (answer.usage.cache_read_input_tokens or 0)


def test_the_beginning_of_an_answer_and_its_end(client: Anthropic) -> None:
    def ask(*stop: str) -> tuple[Message, str]:
        begun: MessageParam = {"role": "assistant", "content": "The sum is"}
        message = client.messages.create(
            model=MODEL, max_tokens=32, messages=[ADD, begun], stop_sequences=stop, extra_body=GREEDY
        )
        (block,) = message.content
        assert block.type == "text"
        return message, block.text

    text = ask()[1]
    last = text[-1]
    message, cut = ask(last)
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", last)
    assert cut == text[: text.index(last)]
    short = client.messages.create(model=MODEL, max_tokens=2, messages=[ADD])
    assert (short.stop_reason, short.usage.output_tokens) == ("max_tokens", 2)


def test_a_call_its_result_and_the_answer(client: Anthropic) -> None:
    asked = client.messages.stream(model=MODEL, max_tokens=128, messages=[ASKS], tools=[WEATHER], extra_body=GREEDY)
    with asked as stream:
        kinds = {event.type for event in stream}
        first = stream.get_final_message()
    assert "input_json" in kinds
    assert first.stop_reason == "tool_use"
    (call,) = first.content
    assert call.type == "tool_use"
    assert (call.name, call.input) == ("get_weather", {"city": "Rome"})
    said: MessageParam = {"role": "assistant", "content": first.content}
    result: MessageParam = {
        "role": "user",
        "content": [{"type": "tool_result", "tool_use_id": call.id, "content": '{"temperature": 21, "sky": "sunny"}'}],
    }
    answer = client.messages.create(
        model=MODEL, max_tokens=128, messages=[ASKS, said, result], tools=[WEATHER], extra_body=GREEDY
    )
    assert answer.stop_reason == "end_turn"
    assert answer.content[0].type == "text"
    assert "sunny" in answer.content[0].text


def test_a_call_that_must_come(client: Anthropic) -> None:
    hello: MessageParam = {"role": "user", "content": "Hello"}
    choices: tuple[ToolChoiceParam, ...] = ({"type": "any"}, {"type": "tool", "name": "get_weather"})
    for choice in choices:
        message = client.messages.create(
            model=MODEL, max_tokens=64, messages=[hello], tools=[WEATHER], tool_choice=choice, extra_body=GREEDY
        )
        assert [block.type for block in message.content] == ["tool_use"]
        assert message.stop_reason == "tool_use"


def schema_of_a_sum(kind: str) -> OutputConfigParam:
    schema = {"type": "object", "properties": {"sum": {"type": kind}}, "required": ["sum"]}
    return {"format": {"type": "json_schema", "schema": {**schema, "additionalProperties": False}}}


def test_an_answer_that_must_fit_a_schema(client: Anthropic) -> None:
    message = client.messages.create(
        model=MODEL, max_tokens=64, messages=[ADD], output_config=schema_of_a_sum("integer"), extra_body=GREEDY
    )
    (block,) = message.content
    assert block.type == "text"
    assert isinstance(json.loads(block.text)["sum"], int)
    with pytest.raises(anthropic.BadRequestError, match=r"output_config\.format\.schema"):
        client.messages.create(model=MODEL, max_tokens=64, messages=[ADD], output_config=schema_of_a_sum("no kind"))


def test_the_model_is_listed(client: Anthropic) -> None:
    (listed,) = client.models.list()
    assert (listed.id, listed.type, listed.max_input_tokens) == (MODEL, "model", 8192)
    assert client.models.retrieve(MODEL) == listed


def test_errors_are_those_of_the_client(client: Anthropic) -> None:
    with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
        client.messages.create(model=MODEL, max_tokens=9, messages=[{"role": "user", "content": "word " * 9000}])
    with pytest.raises(anthropic.NotFoundError, match="There is no model 'gone'") as raised:
        client.messages.create(model="gone", max_tokens=9, messages=[ADD])
    assert raised.value.request_id
    image: ImageBlockParam = {"type": "image", "source": {"type": "url", "url": "http://127.0.0.1/a.png"}}
    with pytest.raises(anthropic.BadRequestError, match="only text content is supported"):
        client.messages.create(model=MODEL, max_tokens=9, messages=[{"role": "user", "content": [image]}])


def test_a_stream_that_is_left_frees_its_place(client: Anthropic) -> None:
    for _ in range(3):
        with client.messages.stream(model=MODEL, max_tokens=4096, messages=[ADD]) as stream:
            next(iter(stream.text_stream))
    message = client.messages.create(model=MODEL, max_tokens=4, messages=[ADD])
    assert message.usage.output_tokens <= 4

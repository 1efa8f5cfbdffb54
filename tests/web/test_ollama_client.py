"""Ollama's Python client against `triolet serve` over TCP, with its worker process and the bundled model."""

import json
from collections.abc import Iterator
from typing import Any

import ollama
import pytest

from ..conftest import Server

MODEL = "triolet-demo"
ADD = {"role": "user", "content": "What is 3 plus 4?"}
ASKS = {"role": "user", "content": "What is the weather in Rome?"}
GREEDY = {"temperature": 0}
WEATHER: dict[str, Any] = {  # Any: JSON
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[Any]:  # Any: ollama leaves the types of its client's methods open
    client: Any = ollama.Client(host=server.url)
    with client:
        yield client


def test_a_chat_streamed_and_whole(client: Any) -> None:
    whole = client.chat(MODEL, [ADD], options=GREEDY)
    assert whole.message.content
    assert (whole.done, whole.done_reason, whole.model) == (True, "stop", MODEL)
    assert whole.total_duration >= whole.eval_duration > 0
    *pieces, last = client.chat(MODEL, [ADD], options=GREEDY, stream=True)
    assert "".join(piece.message.content for piece in pieces) == whole.message.content
    assert len(pieces) > 1
    assert (last.done, last.eval_count, last.prompt_eval_count) == (True, whole.eval_count, whole.prompt_eval_count)


def test_a_generation_is_the_chat_of_one_turn(client: Any) -> None:
    chat = client.chat(MODEL, [ADD], options=GREEDY).message.content
    assert client.generate(MODEL, ADD["content"], options=GREEDY).response == chat
    assert (
        "".join(piece.response for piece in client.generate(MODEL, ADD["content"], options=GREEDY, stream=True)) == chat
    )
    raw = client.generate(MODEL, "3 + 4 =", raw=True, options=GREEDY | {"num_predict": 2})
    assert (raw.eval_count, raw.done_reason) == (2, "length")


def test_log_probabilities(client: Any) -> None:
    answer = client.chat(MODEL, [ADD], options=GREEDY | {"num_predict": 3}, logprobs=True, top_logprobs=2)
    assert len(answer.logprobs) == 3
    assert all(len(score.top_logprobs) == 2 for score in answer.logprobs)


def test_a_call_its_result_and_the_answer(client: Any) -> None:
    first = client.chat(MODEL, [ASKS], tools=[WEATHER], options=GREEDY).message
    (call,) = first.tool_calls
    assert (call.function.name, call.function.arguments) == ("get_weather", {"city": "Rome"})
    streamed = [piece.message for piece in client.chat(MODEL, [ASKS], tools=[WEATHER], options=GREEDY, stream=True)]
    assert [call for message in streamed for call in message.tool_calls or ()] == [call]
    result = {"role": "tool", "tool_name": "get_weather", "content": '{"temperature": 21, "sky": "sunny"}'}
    answer = client.chat(MODEL, [ASKS, first, result], tools=[WEATHER], options=GREEDY)
    assert "sunny" in answer.message.content


def test_an_answer_that_must_fit_a_schema(client: Any) -> None:
    schema = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}
    options = GREEDY | {"num_predict": 64}
    answer = client.chat(MODEL, [ADD], format=schema | {"additionalProperties": False}, options=options)
    assert isinstance(json.loads(answer.message.content)["sum"], int)
    with pytest.raises(ollama.ResponseError, match="format"):
        client.chat(MODEL, [ADD], format={"type": "number of kinds"})


def test_the_model_is_listed_shown_and_running(client: Any) -> None:
    (listed,) = client.list().models
    assert listed.model == f"{MODEL}:latest"
    shown = client.show(listed.model)
    architecture = shown.modelinfo["general.architecture"]
    assert shown.modelinfo[f"{architecture}.context_length"] == 8192
    assert shown.capabilities == ["completion", "tools"]
    (running,) = client.ps().models
    assert (running.model, running.context_length) == (listed.model, 8192)
    assert client.chat(listed.model).done_reason == "load"


def test_errors_are_those_of_the_client(client: Any) -> None:
    with pytest.raises(ollama.ResponseError, match="maximum context length") as raised:
        client.chat(MODEL, [{"role": "user", "content": "word " * 9000}])
    assert raised.value.status_code == 400
    with pytest.raises(ollama.ResponseError, match="There is no model 'gone'") as raised:
        list(client.generate("gone", "Hi", stream=True))
    assert raised.value.status_code == 404
    for refused, arguments in ((client.pull, ["llama3"]), (client.embeddings, [MODEL, "Hi"])):
        with pytest.raises(ollama.ResponseError, match="belongs to Ollama's API and is not implemented"):
            refused(*arguments)
    with pytest.raises(ollama.ResponseError, match="It makes no vectors"):
        client.embed(MODEL, "Hi")

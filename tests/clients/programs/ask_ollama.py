"""ollama (Python): a streamed chat, whose last piece has the counts."""

import json
import sys

import ollama
from pydantic import BaseModel

QUESTION = {"role": "user", "content": "What is 3 plus 4?"}
WEATHER = {"role": "user", "content": "What is the weather in Rome?"}
OPTIONS = {"temperature": 0}


class Sum(BaseModel):
    result: int


def get_weather(city: str) -> str:
    """The weather in a city.

    Args:
        city: its name
    """
    return json.dumps({"temperature": 21, "sky": "sunny"}) if city == "Rome" else "unknown"


with ollama.Client(host=sys.argv[1]) as client:
    model = client.list().models[0].model
    *pieces, last = client.chat(model, [QUESTION], options=OPTIONS, stream=True)
    message = ollama.Message(role="assistant", content="".join(piece.message.content for piece in pieces))
    turns = [QUESTION, message, {"role": "user", "content": "Thank you"}]
    second = client.chat(model, turns, options=OPTIONS)
    asks = client.chat(model, [WEATHER], tools=[get_weather], options=OPTIONS).message
    sky = [get_weather(**call.function.arguments) for call in asks.tool_calls]
    results = [{"role": "tool", "tool_name": "get_weather", "content": content} for content in sky]
    called = client.chat(model, [WEATHER, asks, *results], tools=[get_weather], options=OPTIONS)
    formed = client.chat(model, [QUESTION], format=Sum.model_json_schema(), options=OPTIONS).message.content
    try:
        client.chat(model, [{"role": "user", "content": "word " * 9000}], options=OPTIONS)
        error = None
    except ollama.ResponseError as raised:
        error = f"{type(raised).__name__} {raised.status_code}"

print(json.dumps({
    "pieces": [piece.message.content for piece in pieces],
    "answer": message.content,
    "tokens": [last.prompt_eval_count, last.eval_count],
    "second": second.message.content,
    "overflow": error,
    "called": called.message.content,
    "formed": isinstance(Sum.model_validate_json(formed), Sum),
}))  # fmt: skip

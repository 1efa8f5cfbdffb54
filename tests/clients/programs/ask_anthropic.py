"""anthropic (Python): the streaming helper, whose message has every field that the library knows."""

import json
import sys

import anthropic
from pydantic import BaseModel

QUESTION = {"role": "user", "content": "What is 3 plus 4?"}
WEATHER = {"role": "user", "content": "What is the weather in Rome?"}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {"name": "get_weather", "description": "The weather in a city.", "input_schema": SCHEMA}
OPTIONS = {"model": "triolet-demo", "max_tokens": 1024, "extra_body": {"temperature": 0}}


class Sum(BaseModel):
    result: int


with anthropic.Anthropic(base_url=sys.argv[1], api_key="none", max_retries=0) as client:
    with client.messages.stream(messages=[QUESTION], **OPTIONS) as stream:
        pieces = list(stream.text_stream)
        whole = stream.get_final_message()
    message = {"role": "assistant", "content": whole.content}
    second = client.messages.create(messages=[QUESTION, message, {"role": "user", "content": "Thank you"}], **OPTIONS)
    asks = client.messages.create(messages=[WEATHER], tools=[TOOL], **OPTIONS)
    (call,) = asks.content
    sky = json.dumps({"temperature": 21, "sky": "sunny"}) if call.input == {"city": "Rome"} else "unknown"
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": sky}]}
    turns = [WEATHER, {"role": "assistant", "content": asks.content}, result]
    called = client.messages.create(messages=turns, tools=[TOOL], **OPTIONS)
    formed = client.messages.parse(messages=[QUESTION], output_format=Sum, **OPTIONS).parsed_output
    try:
        client.messages.create(messages=[{"role": "user", "content": "word " * 9000}], **OPTIONS)
        error = None
    except anthropic.BadRequestError as raised:
        error = f"{type(raised).__name__} {raised.body['error']['details']['error_code']}"

print(json.dumps({
    "pieces": pieces,
    "answer": whole.content[0].text,
    "tokens": [whole.usage.input_tokens + whole.usage.cache_read_input_tokens, whole.usage.output_tokens],
    "second": second.content[0].text,
    "overflow": error,
    "called": called.content[0].text,
    "formed": isinstance(formed, Sum),
}))  # fmt: skip

"""litellm: a fallback to another model begins with ContextWindowExceededError."""

import json
import os
import sys

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # no look-up on the Internet at import

import litellm
from pydantic import BaseModel

QUESTION = {"role": "user", "content": "What is 3 plus 4?"}
WEATHER = {"role": "user", "content": "What is the weather in Rome?"}
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {
    "type": "function",
    "function": {"name": "get_weather", "description": "The weather in a city.", "parameters": PARAMETERS},
}


class Sum(BaseModel):
    result: int


options = {
    "model": "hosted_vllm/triolet-demo",
    "api_base": sys.argv[1] + "/v1",
    "api_key": "none",
    "temperature": 0,
    "num_retries": 0,
}
chunks = list(litellm.completion(messages=[QUESTION], stream=True, stream_options={"include_usage": True}, **options))
whole = litellm.stream_chunk_builder(chunks, messages=[QUESTION])
message = whole.choices[0].message
second = litellm.completion(
    messages=[QUESTION, message.model_dump(), {"role": "user", "content": "Thank you"}], **options
)
asks = litellm.completion(messages=[WEATHER], tools=[TOOL], **options).choices[0].message
(call,) = asks.tool_calls
city = json.loads(call.function.arguments)["city"]
sky = json.dumps({"temperature": 21, "sky": "sunny"}) if city == "Rome" else "unknown"
result = {"role": "tool", "tool_call_id": call.id, "content": sky}
called = litellm.completion(messages=[WEATHER, asks.model_dump(), result], tools=[TOOL], **options)
formed = litellm.completion(messages=[QUESTION], response_format=Sum, **options).choices[0].message.content
try:
    litellm.completion(messages=[{"role": "user", "content": "word " * 9000}], **options)
    error = None
except litellm.ContextWindowExceededError as raised:
    error = type(raised).__name__

print(json.dumps({
    "pieces": [chunk.choices[0].delta.content for chunk in chunks if chunk.choices and chunk.choices[0].delta.content],
    "answer": message.content,
    "tokens": [whole.usage.prompt_tokens, whole.usage.completion_tokens],
    "second": second.choices[0].message.content,
    "overflow": error,
    "called": called.choices[0].message.content,
    "formed": isinstance(Sum.model_validate_json(formed), Sum),
}))  # fmt: skip

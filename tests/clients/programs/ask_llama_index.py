"""llama-index-llms-openai-like: a chat, streamed too, an agent's step with a tool, and an answer as an object."""

import json
import sys

import openai
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel

QUESTION = ChatMessage(role="user", content="What is 3 plus 4?")
WEATHER = ChatMessage(role="user", content="What is the weather in Rome?")


class Sum(BaseModel):
    """A sum."""

    result: int


def get_weather(city: str) -> str:
    """The weather in a city."""
    return json.dumps({"temperature": 21, "sky": "sunny"}) if city == "Rome" else "unknown"


model = OpenAILike(
    api_base=sys.argv[1] + "/v1", api_key="none", model="triolet-demo", temperature=0, max_retries=0,
    context_window=8192, is_chat_model=True, is_function_calling_model=True,
)  # fmt: skip
chunks = list(model.stream_chat([QUESTION], stream_options={"include_usage": True}))
message, usage = chunks[-1].message, chunks[-1].raw.usage
second = model.chat([QUESTION, message, ChatMessage(role="user", content="Thank you")])
formed = model.as_structured_llm(Sum).chat([QUESTION]).raw

tool = FunctionTool.from_defaults(get_weather)
asks = model.chat_with_tools([tool], chat_history=[WEATHER])
results = [
    ChatMessage(role="tool", content=tool(**call.tool_kwargs).content, additional_kwargs={"tool_call_id": call.tool_id})
    for call in model.get_tool_calls_from_response(asks)
]
called = model.chat_with_tools([tool], chat_history=[WEATHER, asks.message, *results])
try:
    model.chat([ChatMessage(role="user", content="word " * 9000)])
    error = None
except openai.BadRequestError as raised:
    error = f"{type(raised).__name__} {raised.code}"

print(json.dumps({
    "pieces": [chunk.delta for chunk in chunks if chunk.delta],
    "answer": message.content,
    "tokens": [usage.prompt_tokens, usage.completion_tokens],
    "second": second.message.content,
    "overflow": error,
    "called": called.message.content,
    "formed": isinstance(formed, Sum),
}))  # fmt: skip

"""langchain-openai: ChatOpenAI with a tool and with a form, and its own exception for a context that overflows."""

import json
import sys

from langchain_core.messages import AIMessageChunk, HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langchain_openai.chat_models.base import OpenAIContextOverflowError
from pydantic import BaseModel

QUESTION = HumanMessage("What is 3 plus 4?")
WEATHER = HumanMessage("What is the weather in Rome?")


class Sum(BaseModel):
    """A sum."""

    result: int


@tool
def get_weather(city: str) -> str:
    """The weather in a city."""
    return json.dumps({"temperature": 21, "sky": "sunny"}) if city == "Rome" else "unknown"


model = ChatOpenAI(
    base_url=sys.argv[1] + "/v1", api_key="none", model="triolet-demo", temperature=0, max_retries=0, stream_usage=True
)
chunks = list(model.stream([QUESTION]))
message = chunks[0]
for chunk in chunks[1:]:
    message += chunk
assert isinstance(message, AIMessageChunk)
second = model.invoke([QUESTION, message, HumanMessage("Thank you")])
try:
    model.invoke([HumanMessage("word " * 9000)])
    error = None
except OpenAIContextOverflowError as raised:
    error = type(raised).__name__

agent = model.bind_tools([get_weather])
asks = agent.invoke([WEATHER])
called = agent.invoke([WEATHER, asks, *(get_weather.invoke(call) for call in asks.tool_calls)])
formed = [
    model.with_structured_output(Sum, method=method).invoke([QUESTION])
    for method in ("json_schema", "function_calling")
]

print(json.dumps({
    "pieces": [chunk.content for chunk in chunks if chunk.content],
    "answer": message.content,
    "tokens": [message.usage_metadata["input_tokens"], message.usage_metadata["output_tokens"]],
    "second": second.content,
    "overflow": error,
    "called": called.content,
    "formed": all(isinstance(answer, Sum) for answer in formed),
}))  # fmt: skip

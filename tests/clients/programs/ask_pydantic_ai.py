"""pydantic-ai: an agent with instructions, whose history goes into the second run."""

import asyncio
import json
import sys

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.exceptions import ModelContextWindowExceededError
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

model = OpenAIChatModel("triolet-demo", provider=OpenAIProvider(base_url=sys.argv[1] + "/v1", api_key="none"))
agent = Agent(model, model_settings={"temperature": 0})

forecaster = Agent(model, model_settings={"temperature": 0})


class Sum(BaseModel):
    """A sum."""

    result: int


@forecaster.tool_plain
def get_weather(city: str) -> str:
    """The weather in a city."""
    return json.dumps({"temperature": 21, "sky": "sunny"}) if city == "Rome" else "unknown"


async def main() -> dict[str, object]:
    async with agent.run_stream("What is 3 plus 4?") as run:
        pieces = [piece async for piece in run.stream_text(delta=True, debounce_by=None)]
        used = run.usage
        history = run.all_messages()
    second = await agent.run("Thank you", message_history=history)
    try:
        await agent.run("word " * 9000)
        error = None
    except ModelContextWindowExceededError as raised:
        error = type(raised).__name__
    called = await forecaster.run("What is the weather in Rome?")
    formed = [await agent.run("What is 3 plus 4?", output_type=form) for form in (Sum, NativeOutput(Sum))]
    return {
        "pieces": pieces,
        "answer": "".join(pieces),
        "tokens": [used.input_tokens, used.output_tokens],
        "second": second.output,
        "overflow": error,
        "called": called.output,
        "formed": all(isinstance(run.output, Sum) for run in formed),
    }


print(json.dumps(asyncio.run(main())))

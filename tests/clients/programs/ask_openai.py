"""openai (Python): the streaming helpers, `parse`, a tool, Responses over HTTP and a WebSocket, files and batches."""

import json
import sys
import time

import openai
from pydantic import BaseModel

url = sys.argv[1] + "/v1"
QUESTION = {"role": "user", "content": "What is 3 plus 4?"}
WEATHER = {"role": "user", "content": "What is the weather in Rome?"}
TEXT = QUESTION["content"]


class Sum(BaseModel):
    result: int


class GetWeather(BaseModel):
    """The weather in a city."""

    city: str


def chat_with_a_tool() -> str:
    tool = openai.pydantic_function_tool(GetWeather, name="get_weather")
    asks = client.chat.completions.parse(messages=[WEATHER], tools=[tool], **options).choices[0].message
    (call,) = asks.tool_calls
    sky = {"temperature": 21, "sky": "sunny"} if call.function.parsed_arguments.city == "Rome" else "unknown"
    result = {"role": "tool", "tool_call_id": call.id, "content": json.dumps(sky)}
    answer = client.chat.completions.create(messages=[WEATHER, asks, result], tools=[tool], **options)
    return answer.choices[0].message.content


def with_responses() -> list[str]:
    """The answer whole, streamed and on a WebSocket, and the one to another turn."""
    first = client.responses.create(input=TEXT, store=True, **options)
    with client.responses.stream(input=TEXT, **options) as stream:
        streamed = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
    with client.responses.connect() as socket:
        socket.response.create(input=TEXT, **options)
        said = next(event.response for event in socket if event.type == "response.completed")
    second = client.responses.create(input="Thank you", previous_response_id=first.id, **options)
    assert isinstance(client.responses.parse(input=TEXT, text_format=Sum, **options).output_parsed, Sum)
    return [first.output_text, streamed, said.output_text, second.output_text]


def in_a_batch() -> str:
    chat = "/v1/chat/completions"
    line = {"custom_id": "sum", "method": "POST", "url": chat, "body": {"messages": [QUESTION], **options}}
    file = client.files.create(file=("in.jsonl", json.dumps(line).encode()), purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint=chat, completion_window="24h")
    while batch.status not in ("completed", "failed", "expired", "cancelled"):
        time.sleep(0.05)
        batch = client.batches.retrieve(batch.id)
    answer = json.loads(client.files.content(batch.output_file_id).text)
    return answer["response"]["body"]["choices"][0]["message"]["content"]


with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
    model = client.models.list().data[0].id
    options = {"model": model, "temperature": 0}
    with client.chat.completions.stream(
        messages=[QUESTION], stream_options={"include_usage": True}, **options
    ) as stream:
        pieces = [event.delta for event in stream if event.type == "content.delta"]
        whole = stream.get_final_completion()
    message = whole.choices[0].message
    second = client.chat.completions.create(
        messages=[QUESTION, message, {"role": "user", "content": "Thank you"}], **options
    )
    formed = (
        client.chat.completions.parse(messages=[QUESTION], response_format=Sum, **options).choices[0].message.parsed
    )
    called, responses, batch = chat_with_a_tool(), with_responses(), in_a_batch()
    try:
        client.chat.completions.create(messages=[{"role": "user", "content": "word " * 9000}], **options)
        error = None
    except openai.BadRequestError as raised:
        error = f"{type(raised).__name__} {raised.code}"

print(json.dumps({
    "pieces": pieces,
    "answer": message.content,
    "tokens": [whole.usage.prompt_tokens, whole.usage.completion_tokens],
    "second": second.choices[0].message.content,
    "overflow": error,
    "called": called,
    "formed": isinstance(formed, Sum),
    "responses": responses,
    "batch": batch,
}))  # fmt: skip

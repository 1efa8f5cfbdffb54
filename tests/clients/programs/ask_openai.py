"""openai (Python): the streaming helper, whose message has every field that the library knows."""

import json
import sys

import openai

url = sys.argv[1] + "/v1"
QUESTION = {"role": "user", "content": "What is 3 plus 4?"}

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
}))  # fmt: skip

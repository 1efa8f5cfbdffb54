"""anthropic (Python): the streaming helper, whose message has every field that the library knows."""

import json
import sys

import anthropic

QUESTION = {"role": "user", "content": "What is 3 plus 4?"}
OPTIONS = {"model": "triolet-demo", "max_tokens": 1024, "extra_body": {"temperature": 0}}

with anthropic.Anthropic(base_url=sys.argv[1], api_key="none", max_retries=0) as client:
    with client.messages.stream(messages=[QUESTION], **OPTIONS) as stream:
        pieces = list(stream.text_stream)
        whole = stream.get_final_message()
    message = {"role": "assistant", "content": whole.content}
    second = client.messages.create(messages=[QUESTION, message, {"role": "user", "content": "Thank you"}], **OPTIONS)
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
}))  # fmt: skip

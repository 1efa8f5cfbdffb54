"""ollama (Python): a streamed chat, whose last piece has the counts."""

import json
import sys

import ollama

QUESTION = {"role": "user", "content": "What is 3 plus 4?"}
OPTIONS = {"temperature": 0}

with ollama.Client(host=sys.argv[1]) as client:
    model = client.list().models[0].model
    *pieces, last = client.chat(model, [QUESTION], options=OPTIONS, stream=True)
    message = ollama.Message(role="assistant", content="".join(piece.message.content for piece in pieces))
    turns = [QUESTION, message, {"role": "user", "content": "Thank you"}]
    second = client.chat(model, turns, options=OPTIONS)
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
}))  # fmt: skip

"""openapi-python-client: a client generated from /openapi.json. It has no streams."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

url = sys.argv[1]
QUESTION = {"role": "user", "content": "What is 3 plus 4?"}

with tempfile.TemporaryDirectory() as folder:
    generator = Path(sys.executable).with_name("openapi-python-client")
    config = Path(folder, "config.yml")
    config.write_text("post_hooks: []")
    made = subprocess.run(
        [generator, "generate", "--url", f"{url}/openapi.json", "--meta", "none", "--output-path", f"{folder}/client",
         "--config", config, "--fail-on-warning"],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    sys.path.insert(0, folder)

    from client import Client
    from client.api.default import create_chat_completion, list_models
    from client.models import AssistantMessage, AssistantMessageRole, ChatBody, ChatCompletion, ErrorBody

    def ask(messages: list[dict[str, object]]) -> ChatCompletion | ErrorBody:
        body = ChatBody.from_dict({"model": model, "messages": messages, "temperature": 0})
        return create_chat_completion.sync(client=client, body=body)

    client = Client(base_url=url, raise_on_unexpected_status=True)
    model = list_models.sync(client=client).data[0].id
    whole = ask([QUESTION])
    message = AssistantMessage(role=AssistantMessageRole.ASSISTANT, content=whole.choices[0].message.content)
    second = ask([QUESTION, message.to_dict(), {"role": "user", "content": "Thank you"}])
    error = ask([{"role": "user", "content": "word " * 9000}])

print(json.dumps({
    "pieces": None,
    "answer": message.content,
    "tokens": [whole.usage.prompt_tokens, whole.usage.completion_tokens],
    "second": second.choices[0].message.content,
    "overflow": f"{type(error).__name__} {error.error.code}",
}))  # fmt: skip

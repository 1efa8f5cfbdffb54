"""Open WebUI, as installed: its server in this process, an account, and the calls of its page to a connection.

Function calling is "legacy", as docs/clients.md says: its own tools are too many for the bundled model.
"""

import json
import os
import sys
import tempfile

import httpx

os.environ |= {
    "FROM_INIT_PY": "true",  # as its command sets it
    "DATA_DIR": (folder := tempfile.TemporaryDirectory()).name,
    "USE_SLIM_DOCKER": "true",
    "OFFLINE_MODE": "true",
    "ENABLE_OLLAMA_API": "false",
    "WEBUI_SECRET_KEY": "secret" * 6,
    "GLOBAL_LOG_LEVEL": "ERROR",
    "OPENAI_API_BASE_URL": f"{sys.argv[1]}/v1",
    "OPENAI_API_KEY": "none",
    "DEFAULT_MODEL_PARAMS": '{"function_calling": "legacy"}',
}

from fastapi.testclient import TestClient
from open_webui.main import app

URL = os.environ["OPENAI_API_BASE_URL"]
MODEL = "triolet-demo"
QUESTION = {"role": "user", "content": "What is 3 plus 4?"}


def plain(*messages: dict[str, str]) -> str:
    body = {"messages": messages, "temperature": 0}
    answer = httpx.post(f"{URL}/chat/completions", json=body, timeout=60).raise_for_status().json()
    return str(answer["choices"][0]["message"]["content"])


def chat(client: TestClient, *messages: dict[str, str]) -> tuple[list[str], dict[str, int]]:
    """The pieces of a streamed answer and its token counts."""
    options = {"stream": True, "stream_options": {"include_usage": True}, "params": {"temperature": 0}}
    said = client.post("/api/chat/completions", json={"model": MODEL, "messages": messages} | options)
    *events, last = [line.removeprefix("data: ") for line in said.text.splitlines() if line]
    assert (said.status_code, last) == (200, "[DONE]"), said.text
    chunks = [json.loads(event) for event in events]
    deltas = [chunk["choices"][0]["delta"].get("content") for chunk in chunks if chunk["choices"]]
    return [delta for delta in deltas if delta], chunks[-1]["usage"]


def ask(client: TestClient) -> dict[str, object]:
    account = {"name": "user", "email": "user@example.org", "password": "a long password"}
    token = client.post("/api/v1/auths/signup", json=account).raise_for_status().json()["token"]
    client.headers["Authorization"] = f"Bearer {token}"
    verified = client.post("/openai/verify", json={"url": URL, "key": "none"}).json()
    shown = client.get("/api/models").json()["data"]
    pieces, usage = chat(client, QUESTION)
    answer = "".join(pieces)
    turns = (QUESTION, {"role": "assistant", "content": answer}, {"role": "user", "content": "Thank you"})
    history = {"model": MODEL, "messages": turns[:2], "type": "web_search"}
    tasks = ("title", "tags", "follow_up", "emoji", "queries", "image_prompt")
    done = [client.post(f"/api/v1/tasks/{task}/completions", json=history | {"prompt": "3 + 4"}) for task in tasks]
    long = {"model": MODEL, "stream": True, "messages": [{"role": "user", "content": "word " * 9000}]}
    overflow = client.post("/api/chat/completions", json=long)
    return {
        "connection": [model["id"] for model in verified["data"]] == [model["id"] for model in shown] == [MODEL],
        "answer": len(pieces) > 1 and answer == plain(QUESTION),
        "usage": usage["total_tokens"] > usage["completion_tokens"] > 1,
        "second": "".join(chat(client, *turns)[0]) == plain(*turns),
        "tasks": [task.json()["object"] for task in done] == ["chat.completion"] * len(tasks),
        "overflow": f"{overflow.status_code} {overflow.json()['error']['code']}",
    }


with folder, TestClient(app) as client:
    record = ask(client)
print(json.dumps(record))

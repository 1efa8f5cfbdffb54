"""Streams of every dialect, each read by its own client to whatever end it has."""

import json
from collections.abc import Callable
from contextlib import closing
from typing import Any, Final

import anthropic
import ollama
import openai
import trio
from anthropic import Anthropic
from openai import OpenAI
from trio_websocket import WebSocketConnection, open_websocket_url

MODEL: Final = "triolet-demo"
ASKS: Final = "Tell me a short story."
MOST: Final = 8000  # tokens; where it must be said
Headers = dict[str, str]
Heard = Callable[[], None]  # called for every piece of text; what it raises makes the client leave


def chat(url: str, headers: Headers, heard: Heard) -> str:
    ends: list[str] = []
    with (
        OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, default_headers=headers) as client,
        client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": ASKS}], stream=True
        ) as chunks,
    ):
        try:
            for choice in (choice for chunk in chunks for choice in chunk.choices):
                if choice.delta.content:
                    heard()
                if choice.finish_reason:
                    ends.append(f"{choice.finish_reason} {(choice.model_extra or {})['triolet_finish_reason']}")
        except openai.APIError as error:
            ends.append(str(error.code))
    return ", ".join(ends)


def completions(url: str, headers: Headers, heard: Heard) -> str:
    ends: list[str] = []
    with (
        OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, default_headers=headers) as client,
        client.completions.create(model=MODEL, prompt=ASKS, stream=True, max_tokens=MOST) as chunks,
    ):
        try:
            for choice in (choice for chunk in chunks for choice in chunk.choices):
                if choice.text:
                    heard()
                if choice.finish_reason:
                    ends.append(f"{choice.finish_reason} {(choice.model_extra or {})['triolet_finish_reason']}")
        except openai.APIError as error:
            ends.append(str(error.code))
    return ", ".join(ends)


def responses(url: str, headers: Headers, heard: Heard) -> str:
    ends: list[str] = []
    with (
        OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, default_headers=headers) as client,
        client.responses.create(model=MODEL, input=ASKS, stream=True) as events,
    ):
        for event in events:
            if event.type == "response.output_text.delta":
                heard()
            elif event.type in ("response.completed", "response.incomplete", "response.failed"):
                ends.append(event.type)
    return ", ".join(ends)


def messages(url: str, headers: Headers, heard: Heard) -> str:
    with (
        Anthropic(base_url=url, api_key="none", max_retries=0, default_headers=headers) as client,
        client.messages.stream(model=MODEL, max_tokens=MOST, messages=[{"role": "user", "content": ASKS}]) as stream,
    ):
        try:
            for _ in stream.text_stream:
                heard()
            return str(stream.get_final_message().stop_reason)
        except anthropic.APIStatusError as error:
            body: Any = error.body  # JSON
            return str(body["error"]["details"]["error_code"])


def ollama_chat(url: str, headers: Headers, heard: Heard) -> str:
    client: Any = ollama.Client(host=url, headers=headers)  # Any: it leaves the types of its methods open
    ends: list[str] = []
    with client, closing(client.chat(MODEL, [{"role": "user", "content": ASKS}], stream=True)) as pieces:
        try:
            for piece in pieces:
                if piece.message.content:
                    heard()
                if piece.done:
                    ends.append(piece.done_reason)
        except ollama.ResponseError as error:
            ends.append(error.error.partition(":")[0])
    return ", ".join(ends)


def stream_socket(url: str, headers: Headers, heard: Heard) -> str:
    frame = {"type": "create", "id": "a", "request": {"model": MODEL, "messages": [{"role": "user", "content": ASKS}]}}

    async def read(socket: WebSocketConnection) -> str:
        await socket.send_message(json.dumps(frame))
        await socket.send_message(json.dumps({"type": "credit", "id": "a", "tokens": MOST}))
        while True:
            said = json.loads(await socket.get_message())
            if said["type"] == "token":
                heard()
            elif said["type"] in ("finished", "failed"):
                return str(said["reason"] if said["type"] == "finished" else said["error"]["code"])

    return trio.run(_on_socket, url, "/v1/stream", headers, read)


def response_socket(url: str, headers: Headers, heard: Heard) -> str:
    async def read(socket: WebSocketConnection) -> str:
        await socket.send_message(json.dumps({"type": "response.create", "model": MODEL, "input": ASKS}))
        while True:
            said = json.loads(await socket.get_message())
            if said["type"] == "response.output_text.delta":
                heard()
            elif said["type"] in ("response.completed", "response.incomplete", "response.failed", "error"):
                return str(said["type"])

    return trio.run(_on_socket, url, "/v1/responses", headers, read)


async def _on_socket(url: str, path: str, headers: Headers, read: Callable[[WebSocketConnection], Any]) -> str:
    sent = [(name.encode(), value.encode()) for name, value in headers.items()]
    async with open_websocket_url(url.replace("http", "ws", 1) + path, extra_headers=sent) as socket:
        end: str = await read(socket)
        return end


READERS: Final[dict[str, Callable[[str, Headers, Heard], str]]] = {
    "chat": chat,
    "completions": completions,
    "responses": responses,
    "responses, socket": response_socket,
    "anthropic": messages,
    "ollama": ollama_chat,
    "stream": stream_socket,
}

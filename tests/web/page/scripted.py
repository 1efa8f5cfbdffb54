"""Answers of our own on the chat page: a route for its WebSocket that speaks the server's frames.

Only for what the bundled model cannot be made to write: formulas, Arabic, 3,000 lines of code.
"""

import json
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import WebSocketRoute

SAMPLES = Path(__file__).parent / "samples"


def sample(name: str) -> str:
    return (SAMPLES / f"{name}.md").read_text()


def scripted(
    answer: Callable[[str], str], *, characters: int = 12, thoughts: str = ""
) -> Callable[[WebSocketRoute], None]:
    """Answers a question with the text that `answer` returns for it, in frames of so many characters."""

    def route(socket: WebSocketRoute) -> None:
        def on_message(message: str | bytes) -> None:
            frame = json.loads(message)
            if frame["type"] != "create":
                return
            name = frame["id"]
            text = answer(frame["request"]["messages"][-1]["content"])
            frames = [{"type": "started", "id": name}]
            pieces = [
                (kind, whole[at : at + characters])
                for kind, whole in (("reasoning", thoughts), ("text", text))
                for at in range(0, len(whole), characters)
            ]
            frames += [
                {"type": "token", "id": name, "kind": kind, "text": piece, "tokens": 1} for kind, piece in pieces
            ]
            usage = {"prompt_tokens": 64, "completion_tokens": len(pieces), "total_tokens": 64 + len(pieces)}
            for sent in [*frames, {"type": "finished", "id": name, "reason": "stop", "usage": usage}]:
                socket.send(json.dumps(sent))

        socket.on_message(on_message)

    return route

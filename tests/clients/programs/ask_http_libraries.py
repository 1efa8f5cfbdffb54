"""requests, aiohttp, httpx and curl: a stream read to its end, and how each reports a wrong path."""

import asyncio
import json
import subprocess
import sys

import aiohttp
import httpx
import requests

BODY = {"messages": [{"role": "user", "content": "What is 3 plus 4?"}], "temperature": 0, "stream": True}
CHAT, WRONG = f"{sys.argv[1]}/v1/chat/completions", f"{sys.argv[1]}/nothing"


def ended(lines: list[str]) -> bool:
    """Events in several pieces, the last of them `[DONE]`."""
    events = [line for line in lines if line.startswith("data: ")]
    return len(events) > 3 and events[-1] == "data: [DONE]"


def with_requests() -> list[object]:
    with requests.post(CHAT, json=BODY, stream=True, timeout=60) as answer:
        lines = [line.decode() for line in answer.iter_lines()]
    try:
        requests.get(WRONG, timeout=60).raise_for_status()
    except requests.HTTPError as error:
        return [ended(lines), str(error).split(" for ")[0]]


def with_httpx() -> list[object]:
    with httpx.stream("POST", CHAT, json=BODY, timeout=60) as answer:
        lines = [*answer.iter_lines()]
    wrong = httpx.get(WRONG)
    return [ended(lines), f"{wrong.status_code} {wrong.reason_phrase}"]


async def with_aiohttp() -> list[object]:
    async with aiohttp.ClientSession() as session:
        async with session.post(CHAT, json=BODY) as answer:
            lines = [line.decode().rstrip("\n") async for line in answer.content]
        async with session.get(WRONG) as wrong:
            return [ended(lines), f"{wrong.status} {wrong.reason}"]


def with_curl() -> list[object]:
    head = ["curl", "--silent", "--no-buffer", "--header", "Content-Type: application/json"]
    said = subprocess.run([*head, "--data", json.dumps(BODY), CHAT], capture_output=True, text=True, check=True).stdout
    wrong = subprocess.run(["curl", "--silent", "--include", WRONG], capture_output=True, text=True, check=True).stdout
    return [ended(said.splitlines()), wrong.splitlines()[0]]


print(json.dumps({
    "requests": with_requests(),
    "httpx": with_httpx(),
    "aiohttp": asyncio.run(with_aiohttp()),
    "curl": with_curl(),
}))  # fmt: skip

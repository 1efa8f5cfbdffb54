"""The server's cost of a request besides its tokens: many one-token answers on keep-alive connections."""

from typing import Final

import msgspec
from msgspec import Struct

from ..client.reader import LAST_CHUNK, Pipe, read_streams
from ..client.request import post_json
from ..process import ServerProcess
from .check_sse import StreamError, body_chunks
from .effort import Effort, effort_between, moment

CONNECTIONS: Final = 16
_WARM_UP: Final = 64


class SetUp(Struct, frozen=True, kw_only=True):
    """`request_ms`: the server's CPU time of one chat completion with one token, from accept to terminal event."""

    request_ms: float
    requests: int
    requests_s: float
    effort: Effort


def request_set_up(server: ServerProcess, requests: int) -> SetUp:
    """A closed loop; every answer is checked."""
    _loop(server, _WARM_UP)
    first = moment(server.cpu_time, ())
    answers = _loop(server, requests)
    last = moment(server.cpu_time, ())
    for answer in answers:
        check_one_token(answer)
    effort = effort_between(first, last)
    return SetUp(
        request_ms=(last.cpu.server - first.cpu.server) / requests * 1000,
        requests=requests,
        requests_s=requests / effort.seconds,
        effort=effort,
    )


def _loop(server: ServerProcess, requests: int) -> list[bytes]:
    request = post_json(
        "/v1/chat/completions",
        {
            "messages": [{"role": "user", "content": "What is 123 + 456?"}],
            "max_tokens": 1,
            "temperature": 0,
            "stream": True,
        },
    )
    pipes = [Pipe(server.port, request, LAST_CHUNK) for _ in range(min(CONNECTIONS, requests))]
    answers: list[bytes] = []
    sent = len(pipes)

    def ask_again(pipe: Pipe) -> bool:
        nonlocal sent
        answers.append(pipe.received())
        if sent == requests:
            return False
        sent += 1
        pipe.size = 0
        pipe.socket.sendall(request)
        return True

    try:
        read_streams(pipes, again=ask_again)
    finally:
        for pipe in pipes:
            pipe.close()
    if len(answers) < requests:
        raise StreamError("the server closed a connection that should stay open")
    return answers


def check_one_token(answer: bytes) -> None:
    """One text, one finish reason, one [DONE], in this order."""
    lines = b"".join(chunk for _, chunk in body_chunks(answer)).strip().split(b"\n\n")
    events = [msgspec.json.decode(line[6:]) for line in lines if line != b"data: [DONE]"]
    choices = [choice for event in events for choice in event["choices"]]
    texts = [choice["delta"]["content"] for choice in choices if choice["delta"].get("content")]
    reasons = [choice["finish_reason"] for choice in choices if choice["finish_reason"]]
    if len(texts) != 1 or reasons != ["length"] or lines[-1] != b"data: [DONE]" or choices[-1]["finish_reason"] is None:
        raise StreamError(f"an answer of one token is {answer!r}")

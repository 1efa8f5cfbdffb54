"""The clock of a cold start stops at the first text, not at the role that comes before it."""

from functools import partial

import pytest
import trio

from triolet.loadtest.cold_start import first_token, has_text

ROLE = b'{"choices": [{"delta": {"role": "assistant", "content": ""}}]}'
TEXT = b'{"choices": [{"delta": {"content": "5"}}]}'


def test_stops_at_the_first_text() -> None:
    assert [has_text(event) for event in (ROLE, TEXT, b"[DONE]")] == [False, True, False]


async def test_an_answer_without_text_is_refused(nursery: trio.Nursery) -> None:
    async def serve(stream: trio.SocketStream) -> None:
        async with stream:
            asked = b""
            while not asked.endswith(b"}"):
                asked += await stream.receive_some()
            await stream.send_all(
                b"HTTP/1.1 200 OK\r\n\r\ndata: " + ROLE + b"\n\n" + answers.pop() + b"data: [DONE]\n\n"
            )

    answers = [b"", b"data: " + TEXT + b"\n\n"]
    (listener,) = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
    port = listener.socket.getsockname()[1]
    await first_token(port)
    with pytest.raises(SystemExit, match="the answer had no text"):
        await first_token(port)
    nursery.cancel_scope.cancel()

"""The yardstick: a bare trio server that streams ready-made SSE events, one `send_all` per event.

`python -m triolet.loadtest.web.raw_server CPU`; prints its port. `GET /N` is answered with N events. No framework, no
parsing, no JSON, no tokens, no scheduler: only what a trio socket can do on this machine.
"""

import os
import sys
from typing import Final

import trio

EVENT: Final = (
    b'data: {"id":"cmpl-30549be2d8f1-1","object":"text_completion","created":1795212697,"model":"triolet-demo",'
    b'"choices":[{"index":0,"text":" moved","logprobs":null,"finish_reason":null}]}\n\n'
)  # like Triolet's current events, 183 bytes
CHUNK: Final = b"%x\r\n%b\r\n" % (len(EVENT), EVENT)
HEAD: Final = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


async def answer(stream: trio.SocketStream) -> None:
    asked = b""
    while b"\r\n\r\n" not in asked:
        some = await stream.receive_some()
        if not some:
            return
        asked += some
    events = int(asked.split()[1][1:])
    await stream.send_all(HEAD)
    for _ in range(events):
        await stream.send_all(CHUNK)
    await stream.send_all(b"0\r\n\r\n")


async def main(cpu: int | None) -> None:
    if cpu is not None:
        os.sched_setaffinity(0, {cpu})
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1", backlog=1024)
    print(f"Ready at http://127.0.0.1:{listeners[0].socket.getsockname()[1]}", flush=True)
    await trio.serve_listeners(answer, listeners)


if __name__ == "__main__":
    trio.run(main, int(sys.argv[1]) if len(sys.argv) > 1 else None)

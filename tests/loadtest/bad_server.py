"""A server that does everything wrong, for the behaviour benchmark to find out: `python bad_server.py PORT`.

Its streams end without a terminal event; it never notices that a client has left and computes on; what a client does
not read it keeps in memory without bound; all streams share one engine, and slow each other; SIGTERM ends it at once.
"""

import json
import sys
from collections import deque
from typing import Final

import trio

TOKEN_SECONDS: Final = 0.005  # of one stream alone
PADDING: Final = "x" * 20_000

running = 0


async def answer(stream: trio.SocketStream) -> None:
    asked = b""
    while b"\r\n\r\n" not in asked:
        asked += await stream.receive_some()
    head, _, body = asked.partition(b"\r\n\r\n")
    if b"/v1/models" in head:
        models = json.dumps({"data": [{"id": "bad"}]}).encode()
        await stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(models), models))
        return
    if b"/v1/chat/completions" not in head:
        await stream.send_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
        return
    length = int(head.lower().split(b"content-length:")[1].split()[0])
    while len(body) < length:
        body += await stream.receive_some()
    unsent: deque[bytes] = deque()
    ended = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(compute, json.loads(body)["max_tokens"], unsent, ended)
        nursery.start_soon(send, stream, unsent, ended)


async def compute(tokens: int, unsent: deque[bytes], ended: trio.Event) -> None:
    global running
    running += 1
    chunk = json.dumps({"choices": [{"delta": {"content": "word "}}], "padding": PADDING}).encode()
    for _ in range(tokens):
        await trio.sleep(TOKEN_SECONDS * running)
        unsent.append(bytes(bytearray(b"data: " + chunk + b"\n\n")))
    running -= 1
    ended.set()


async def send(stream: trio.SocketStream, unsent: deque[bytes], ended: trio.Event) -> None:
    try:
        await stream.send_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while unsent or not ended.is_set():
            if unsent:
                data = unsent[0]
                await stream.send_all(b"%x\r\n%b\r\n" % (len(data), data))
                unsent.popleft()
            else:
                await trio.sleep(TOKEN_SECONDS / 2)
        await stream.send_all(b"0\r\n\r\n")
    except trio.BrokenResourceError:
        pass  # and the engine computes on


async def main() -> None:
    async def handle(stream: trio.SocketStream) -> None:
        async with stream:
            stream.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_SNDBUF, 1 << 14)  # the rest is its own to keep
            try:
                await answer(stream)
            except* (trio.BrokenResourceError, trio.ClosedResourceError):
                pass

    await trio.serve_tcp(handle, int(sys.argv[1]), host="127.0.0.1")


if __name__ == "__main__":
    trio.run(main)

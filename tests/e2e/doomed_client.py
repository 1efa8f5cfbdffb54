"""A client that will be killed: `python doomed_client.py URL REQUEST_JSON [CREDIT]`.

Creates one request over the WebSocket, prints the type of every frame it gets, one a line, and never ends by itself.
"""

import json
import sys

import trio
from trio_websocket import open_websocket_url


async def main(url: str, request: str, credit: str | None) -> None:
    async with open_websocket_url(url.replace("http://", "ws://") + "/v1/stream") as socket:
        create: dict[str, object] = {"type": "create", "id": "doomed", "request": json.loads(request)}
        if credit is not None:  # in the same frame: in one of its own it might come behind the whole answer
            create["credit"] = int(credit)
        await socket.send_message(json.dumps(create))
        print("created", flush=True)
        while True:
            print(json.loads(await socket.get_message())["type"], flush=True)


trio.run(main, sys.argv[1], sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else None)

"""A client that will be killed: `python doomed_client.py URL REQUEST_JSON [CREDIT]`.

Creates one request over the WebSocket, prints the type of every frame it gets, one a line, and never ends by itself.
"""

import json
import sys

import trio
from trio_websocket import open_websocket_url


async def main(url: str, request: str, credit: str | None) -> None:
    async with open_websocket_url(url.replace("http://", "ws://") + "/v1/stream") as socket:
        await socket.send_message(json.dumps({"type": "create", "id": "doomed", "request": json.loads(request)}))
        if credit is not None:
            await socket.send_message(json.dumps({"type": "credit", "id": "doomed", "tokens": int(credit)}))
        print("created", flush=True)
        while True:
            print(json.loads(await socket.get_message())["type"], flush=True)


trio.run(main, sys.argv[1], sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else None)

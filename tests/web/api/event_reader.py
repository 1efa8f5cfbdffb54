"""A client that reads a stream of server-sent events event by event, on a connection that a test may cut."""

import h11
import trio

KEEP_ALIVE = b": keep-alive\n"


class Reading:
    """A connection that reads a stream. `events` are those that came whole; comments are not among them."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.token = ""
        self._stream = stream
        self._parser = h11.Connection(h11.CLIENT)
        self._rest = b""

    async def ask(self, method: str, target: str, headers: dict[str, str], body: bytes = b"") -> None:
        fields = {"Host": "localhost", "Content-Type": "application/json", "Content-Length": str(len(body))} | headers
        data = self._parser.send(h11.Request(method=method, target=target, headers=[*fields.items()]))
        assert data is not None
        await self._stream.send_all(data + body)
        self._parser.send(h11.Data(data=body))
        self._parser.send(h11.EndOfMessage())
        head = await self._next()
        assert isinstance(head, h11.Response)
        assert head.status_code == 200
        self.token = dict(head.headers)[b"x-triolet-resume"].decode()

    async def _next(self) -> object:
        while (said := self._parser.next_event()) is h11.NEED_DATA:
            self._parser.receive_data(await self._stream.receive_some())
        return said

    async def event(self) -> bytes:
        """The next one; empty at the end of the stream."""
        while b"\n\n" not in self._rest:
            said = await self._next()
            if not isinstance(said, h11.Data):
                assert (type(said), self._rest) == (h11.EndOfMessage, b"")
                return b""
            self._rest = (self._rest + said.data).removeprefix(KEEP_ALIVE)
        event, _, self._rest = self._rest.partition(b"\n\n")
        return event + b"\n\n"

    async def events(self, most: int = 1000) -> list[bytes]:
        events: list[bytes] = []
        while len(events) < most and (event := await self.event()):
            events.append(event)
        return events

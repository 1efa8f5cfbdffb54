"""Clients of the simulated server, each with a habit: they ask one after another or all at once, by HTTP/1.1, HTTP/2 or
WebSocket; they leave at any await, stall, trickle, and send what is no request. Every draw comes from the seed.

A visitor whose habit is good must get a whole answer or an error; one that leaves must be forgotten soon.
"""

import random
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import h2.config
import h2.connection
import h2.events
import msgspec
import trio

from ...actors.simulation.front import require
from .asks import Ask
from .kernel import ClientSocket, Kernel
from .wire import Answer, CutOff, Reading, frame, read_answer, read_frame, read_head

LONG = 300.0  # seconds: beyond every timeout of the server
HABITS = ("asks",) * 4 + ("leaves",) * 3 + ("pipelines", "trickles", "stalls", "slow", "junk", "half closes")
GOOD = ("asks", "pipelines", "trickles")  # they read as fast as it comes, to the end
HANDSHAKE = (
    b"GET /v1/stream HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nAuthorization: Bearer one\r\n\r\n"
)
H2_HEAD = (
    (":method", "POST"),
    (":scheme", "http"),
    (":authority", "127.0.0.1"),
    ("content-type", "application/json"),
)


class Visit(NamedTuple):
    """One request and what came of it. `kept`: its client read to the end, as fast as it could."""

    ask: Ask
    answer: Answer
    kept: bool


class Visitor:
    """One client: its connections, its requests and what they were told."""

    def __init__(
        self, number: int, asks: list[Ask], habit: str, protocol: str, kernel: Kernel, rng: random.Random, begins: float
    ) -> None:
        self.visits: list[Visit] = []
        self.left: list[tuple[str, float]] = []  # requests by name that nobody waits for any more, and since when
        self.habit = habit
        self._asks = asks
        self._protocol = protocol
        self._kernel = kernel
        self._rng = rng
        self._begins = begins
        self._address = f"10.0.{number}.1", 1000 + number

    async def run(self) -> None:
        await trio.sleep(self._begins)
        ways: dict[str, Callable[[ClientSocket], Awaitable[None]]] = {
            "http": self._http,
            "h2": self._http2,
            "socket": self._socket,
        }
        try:
            sock = self._kernel.connect(
                self._address,
                room=self._rng.choice((600, 4000, 200_000)),
                window=self._rng.choice((500, 4000, 200_000)),
            )
        except ConnectionRefusedError:
            return
        try:
            await ways[self._protocol](sock)
        except (BrokenPipeError, CutOff):
            pass  # where this must not be, the answer says so
        finally:
            sock.close()
            self.left += [(visit.ask.name, trio.current_time()) for visit in self.visits]

    def _begin(self, ask: Ask) -> Answer:
        self.visits.append(Visit(ask, Answer(), self.habit in GOOD))
        return self.visits[-1].answer

    async def _http(self, sock: ClientSocket) -> None:
        rng, reading = self._rng, Reading(sock)
        match self.habit:
            case "pipelines":
                answers = [self._begin(ask) for ask in self._asks]
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._say, sock, b"".join(ask.head_and_body() for ask in self._asks))
                    for answer in answers:
                        await self._read(reading, answer)
            case "leaves":
                await self._leave_at_random(reading)
            case "stalls":
                reading.most = rng.choice((1, 50, 1000))
                answer = self._begin(self._asks[0])
                await sock.send(self._asks[0].head_and_body())
                for _ in range(rng.randrange(4)):
                    await reading.more()
                answer.cut = "stalled"
                await trio.sleep(LONG)
            case "junk":
                await self._talk_nonsense(reading)
            case "half closes":
                answer = self._begin(self._asks[0])
                await sock.send(self._asks[0].head_and_body())
                await self._pause()
                sock.end()
                await self._read(reading, answer)
            case habit:
                reading.most = 400 if habit == "slow" else 65_536
                for ask in self._asks:
                    answer = self._begin(ask)
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(self._say, sock, ask.head_and_body())
                        await self._read(reading, answer)
                    if answer.cut:
                        return
                    await trio.sleep(rng.uniform(0, 3))
                if rng.random() < 0.5:  # an idle connection: the server closes it
                    with trio.move_on_after(LONG):
                        await reading.more()
                    require(False, f"an idle connection is open after {LONG} s")

    async def _say(self, sock: ClientSocket, data: bytes) -> None:
        """In one piece or in many, at any speed that a body may have."""
        step = self._rng.choice((7, 100, len(data))) if self.habit == "trickles" else len(data)
        try:
            for start in range(0, len(data), step):
                await sock.send(data[start : start + step])
                if step < len(data):
                    await trio.sleep(self._rng.uniform(0, 0.05))
        except BrokenPipeError:
            pass  # what was answered is still to be read

    async def _read(self, reading: Reading, answer: Answer) -> None:
        try:
            if self.habit == "slow":
                reading_more, rng = reading.more, self._rng

                async def slowly() -> None:
                    await trio.sleep(rng.uniform(0, 0.4))
                    await reading_more()

                reading.more = slowly  # type: ignore[method-assign]  # the same, later
            await read_answer(reading, answer)
            answer.cut = ""
        except CutOff as cut:
            answer.cut = str(cut)

    async def _leave_at_random(self, reading: Reading) -> None:
        """After some turns of the loop, some bytes, or some time: perhaps before the request is whole."""
        rng, ask = self._rng, self._asks[0]
        answer, data = self._begin(ask), ask.head_and_body()
        if rng.random() < 0.2:
            await reading.sock.send(data[: rng.randrange(1, len(data))])
        else:
            await reading.sock.send(data)
        with trio.CancelScope() as scope:
            match rng.randrange(3):
                case 0:
                    for _ in range(rng.randrange(60)):
                        await trio.lowlevel.checkpoint()
                    scope.cancel()
                case 1:
                    scope.deadline = trio.current_time() + rng.expovariate(1)
                case _:
                    most = rng.randrange(3000)
                    while reading.count < most and rng.random() < 0.9:
                        await reading.more()
                    scope.cancel()
            await self._read(reading, answer)

    async def _talk_nonsense(self, reading: Reading) -> None:
        """Whatever it is, the server ends the connection in some time."""
        rng, valid = self._rng, bytearray(self._asks[0].head_and_body())
        for _ in range(rng.randrange(1, 4)):
            match rng.randrange(4):
                case 0:
                    valid[rng.randrange(len(valid))] = rng.randrange(256)
                case 1:
                    place = rng.randrange(1, max(len(valid), 2))
                    del valid[place : place + rng.randrange(40)]
                case 2:
                    valid = valid[: rng.randrange(1, max(len(valid), 2))]
                case _:
                    place = rng.randrange(len(valid))
                    valid[place:place] = bytes(rng.randrange(256) for _ in range(rng.randrange(20)))
        await reading.sock.send(bytes(valid))
        with trio.move_on_after(LONG) as patience:
            while True:
                await reading.more()
        require(not patience.cancelled_caught, f"still open after {LONG} s: {bytes(valid)!r}")

    async def _pause(self) -> None:
        if self._rng.random() < 0.5:
            await trio.sleep(self._rng.expovariate(2))
        else:
            for _ in range(self._rng.randrange(40)):
                await trio.lowlevel.checkpoint()

    async def _http2(self, sock: ClientSocket) -> None:
        """All requests at once, as streams of one connection."""
        connection = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
        connection.initiate_connection()
        answers, events = dict[int, Answer](), dict[int, bytearray]()
        for ask in self._asks:
            stream = connection.get_next_available_stream_id()
            answers[stream], events[stream] = self._begin(ask), bytearray()
            fields = [(name.lower(), value) for name, value in ask.fields]
            connection.send_headers(stream, [(":path", ask.path), *H2_HEAD, ("x-request-id", ask.name), *fields])
            connection.send_data(stream, msgspec.json.encode(ask.body), end_stream=True)
        await sock.send(connection.data_to_send())
        leaves = self.habit not in GOOD
        with trio.move_on_after(self._rng.expovariate(0.5) if leaves else LONG):
            while any(answer.cut == "left" for answer in answers.values()):
                try:
                    data = await sock.receive()
                except ConnectionResetError:
                    data = b""
                if not data:
                    for answer in answers.values():
                        answer.cut = answer.cut and "closed"
                    break
                for event in connection.receive_data(data):
                    self._take_h2(connection, event, answers, events)
                await sock.send(connection.data_to_send())

    def _take_h2(
        self,
        connection: h2.connection.H2Connection,
        event: h2.events.Event,
        answers: dict[int, Answer],
        events: dict[int, bytearray],
    ) -> None:
        match event:
            case h2.events.ResponseReceived(stream_id=int(stream), headers=list() as fields):
                status: dict[bytes | str, bytes | str] = dict(fields)
                answers[stream].status = int(status[":status"])
            case h2.events.DataReceived(stream_id=int(stream), data=bytes(data), flow_controlled_length=int(size)):
                connection.acknowledge_received_data(size, stream)
                events[stream] += data
                if not events[stream].startswith(b"{"):
                    answers[stream].feed(events[stream])
            case h2.events.StreamEnded(stream_id=int(stream)):
                answer, rest = answers[stream], bytes(events[stream])
                if rest:
                    answer.event(rest)
                    if answer.status == 200:
                        answer.terminals.append("done")
                answer.cut = ""
            case h2.events.StreamReset(stream_id=int(stream)):
                answers[stream].cut = "reset"
            case _:
                pass

    async def _socket(self, sock: ClientSocket) -> None:
        """Requests side by side on one WebSocket, with credit, and cancelled or left now and then."""
        reading, rng = Reading(sock), self._rng
        await sock.send(HANDSHAKE)
        try:
            head = await read_head(reading)
        except CutOff:
            return
        if head.status != 101:
            return
        answers = dict[str, Answer]()
        for ask in self._asks:
            body = {name: value for name, value in ask.body.items() if name not in ("stream", "stream_options")}
            create: dict[str, object] = {"type": "create", "id": ask.name, "request": body}
            if rng.random() < 0.3:
                create["credit"] = rng.randrange(30)
            answers[ask.name] = self._begin(ask)
            await sock.send(frame(msgspec.json.encode(create)))
        leaves = self.habit not in GOOD
        if self.habit == "junk":
            await sock.send(bytes(rng.randrange(256) for _ in range(rng.randrange(1, 60))))
        with trio.move_on_after(rng.expovariate(0.5) if leaves else LONG):
            try:
                while any(answer.cut == "left" for answer in answers.values()):
                    await self._take_frame(reading, answers)
            except (CutOff, BrokenPipeError) as cut:
                for answer in answers.values():
                    answer.cut = answer.cut and (str(cut) or "closed")
        if self.habit == "stalls":
            await trio.sleep(LONG)

    async def _take_frame(self, reading: Reading, answers: dict[str, Answer]) -> None:
        rng = self._rng
        opcode, payload = await read_frame(reading)
        if opcode == 8:
            raise CutOff("closed")
        if opcode == 9:
            await reading.sock.send(frame(payload, 10))
            return
        if opcode == 10:  # its junk happened to be a ping
            require(self.habit == "junk", "a pong without a ping")
            return
        said = msgspec.json.decode(payload)
        answer = answers.get(said.get("id", ""))
        if answer is None or said["type"] == "error":
            return
        match said["type"]:
            case "started":
                answer.id = said["request_id"]
            case "token":
                answer.add(said["index"], said["text"])
                if rng.random() < 0.3:
                    credit = {"type": "credit", "id": said["id"], "tokens": rng.randrange(1, 40)}
                    await reading.sock.send(frame(msgspec.json.encode(credit)))
                elif self.habit == "leaves" and rng.random() < 0.02:
                    await reading.sock.send(frame(msgspec.json.encode({"type": "cancel", "id": said["id"]})))
            case "finished":
                for choice in said["choices"]:
                    answer.end(choice["index"], choice["reason"])
                answer.usage, answer.cut = said["usage"], ""
                answer.terminals.append("done")
            case "failed":
                answer.terminals.append(said["error"]["code"])
                answer.cut = ""
            case _:
                pass

"""What a client reads: HTTP/1.1 answers, their events, and WebSocket frames; strictly, as any fault is the server's."""

from typing import Any, Final, NamedTuple

import msgspec

from .kernel import ClientSocket

MASKED: Final = bytes(4)  # as clients must mask, with a key that changes nothing
Json = Any  # of a decoded body


class CutOff(Exception):
    """The connection ended where it must not end without a reason."""


class Reading:
    """The bytes that a client gets, at its own pace: at most `most` at a time."""

    def __init__(self, sock: ClientSocket, most: int = 65_536) -> None:
        self.sock = sock
        self.most = most
        self.data = bytearray()
        self.count = 0

    async def more(self) -> None:
        try:
            piece = await self.sock.receive(self.most)
        except ConnectionResetError:
            raise CutOff("reset") from None
        if not piece:
            raise CutOff("closed")
        self.count += len(piece)
        self.data += piece

    async def until(self, end: bytes) -> bytes:
        while (place := self.data.find(end)) < 0:
            await self.more()
        found = bytes(self.data[:place])
        del self.data[: place + len(end)]
        return found

    async def exactly(self, size: int) -> bytes:
        while len(self.data) < size:
            await self.more()
        found = bytes(self.data[:size])
        del self.data[:size]
        return found


class Head(NamedTuple):
    status: int
    fields: dict[bytes, bytes]


async def read_head(reading: Reading) -> Head:
    first, *lines = (await reading.until(b"\r\n\r\n")).split(b"\r\n")
    assert first.startswith(b"HTTP/1.1 "), first
    fields = dict(line.lower().split(b": ", 1) for line in lines)
    assert len(fields) == len(lines), f"a field comes twice: {lines}"
    return Head(int(first.split(b" ")[1]), fields)


async def read_chunk(reading: Reading) -> bytes:
    """A piece of a chunked body; empty at its end."""
    piece = await reading.exactly(int(await reading.until(b"\r\n"), 16))
    assert await reading.exactly(2) == b"\r\n"
    return piece


async def read_whole(reading: Reading, head: Head) -> bytes:
    if b"content-length" in head.fields:
        return await reading.exactly(int(head.fields[b"content-length"]))
    body = b""
    while piece := await read_chunk(reading):
        body += piece
    return body


class Answer:
    """What a request was told, whatever it came by."""

    def __init__(self) -> None:
        self.id = ""  # the server's, once it is known
        self.status = 0
        self.texts: dict[int, str] = {}
        self.reasons: dict[int, str] = {}
        self.usage: Json = None
        self.terminals: list[str] = []  # "done" or an error's code
        self.cut = "left"  # why it has no end

    def add(self, index: int, text: str) -> None:
        assert index not in self.reasons, "text behind the end of its choice"
        self.texts[index] = self.texts.get(index, "") + text

    def end(self, index: int, reason: str) -> None:
        assert index not in self.reasons, "a choice ends twice"
        self.reasons[index] = reason

    def event(self, data: bytes) -> None:
        """One server-sent event, or a whole body."""
        if data == b"[DONE]":
            self.terminals.append("done")
            return
        assert not self.terminals, f"{data!r} behind the end"
        said = msgspec.json.decode(data)
        if "error" in said:
            self.terminals.append(said["error"]["code"])
            return
        self.id = said["id"].partition("-")[2]
        self.usage = said.get("usage") or self.usage
        for choice in said["choices"]:
            part = choice.get("delta") or choice.get("message")
            text = choice.get("text", "") if part is None else part.get("content") or ""
            if text:
                self.add(choice["index"], text)
            if choice.get("finish_reason"):
                self.end(choice["index"], choice["triolet_finish_reason"])

    def feed(self, data: bytearray) -> None:
        """Whole events at the start of `data`, which are taken out of it."""
        while (place := data.find(b"\n\n")) >= 0:
            event = bytes(data[:place])
            del data[: place + 2]
            if not event.startswith(b":"):
                assert event.startswith(b"data: "), event
                self.event(event[6:])


async def read_answer(reading: Reading, answer: Answer) -> Head:
    head = await read_head(reading)
    answer.status = head.status
    if head.status == 200 and head.fields[b"content-type"].startswith(b"text/event-stream"):
        events = bytearray()
        while piece := await read_chunk(reading):
            events += piece
            answer.feed(events)
        assert not events, f"half an event: {bytes(events)!r}"
        return head
    body = await read_whole(reading, head)
    answer.event(body)
    if head.status == 200:
        answer.terminals.append("done")
    return head


def frame(text: bytes, opcode: int = 1) -> bytes:
    size = len(text)
    length = bytes([0x80 | size]) if size < 126 else b"\xfe" + size.to_bytes(2, "big")
    return bytes([0x80 | opcode]) + length + MASKED + text


async def read_frame(reading: Reading) -> tuple[int, bytes]:
    """Opcode and payload."""
    first, size = await reading.exactly(2)
    assert first & 0x80, "a fragment"
    assert size < 128, "a server's frame is masked"
    if size >= 126:
        size = int.from_bytes(await reading.exactly(2 if size == 126 else 8), "big")
    return first & 15, await reading.exactly(size)

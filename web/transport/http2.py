"""HTTP/2 as hypercorn speaks it, with every buffer bounded and no frame that can end the process.

- If a client grants no window, a stream holds at most 32 KiB plus one chunk, and its producer waits. After
  `send_timeout` without progress the stream is reset.
- A malformed request (an odd method, a path that is not ASCII, two keys, CONNECT) and a flood of small frames
  (frame_budget.py) close the connection. Between two turns of the event loop only a few frames are parsed.
- Without an open stream the connection is idle, whatever frames arrive.
- DATA for an already answered request (an upload over the size limit) is dropped, and its window is not opened again.
  The stream is reset with NO_ERROR, as RFC 9113 8.1 asks, but a second later: curl 7.88 loses an answer that comes
  together with the reset. Most clients have then stopped by themselves.
- PRIORITY is ignored (RFC 9113 5.3), and WebSockets are offered only over HTTP/1.1.
"""

from collections.abc import Callable, Sequence

import h2.errors
import h2.events
import h2.exceptions
import h2.settings
import trio
from hypercorn.events import Closed, RawData, Updated
from hypercorn.events import Event as ConnectionEvent
from hypercorn.protocol import h2 as hypercorn_h2
from hypercorn.protocol.events import Body, Event, Request, Response, StreamClosed
from hypercorn.protocol.http_stream import HTTPStream
from hypercorn.typing import Event as IOEvent
from hypercorn.utils import filter_pseudo_headers

from .frame_budget import FrameBudget, FrameCutter
from .http1 import ONCE, ConnectionRefused, ProtocolArguments
from .strict_head import METHOD

HIGH_WATER = 2**15  # two frames of the default size: enough to keep a fast client busy
LOW_WATER = HIGH_WATER // 2
LATE_RESET_SECONDS = 1.0  # after the first late DATA
ANSWERING_FRAMES = 4  # small frames that a client may send for each piece of an answer: two windows, and some
PIECE_BYTES = 2**14  # that count as a piece: a frame of the default size


class BoundedStreamBuffer(hypercorn_h2.StreamBuffer):
    """A buffer that stays bounded. hypercorn's wakes the producer even if nothing was taken, so it grew forever.

    And it is drained when it is closed, not when it is empty: the stream's end must have been sent. What follows in
    hypercorn may end the connection of a server that drains, and the client would take its whole answer for half.
    `on_sent` gets the bytes of each frame that is taken.
    """

    def __init__(self, event_class: type[IOEvent], on_sent: Callable[[int], None]) -> None:
        super().__init__(event_class)
        self._on_sent = on_sent

    async def push(self, data: bytes) -> None:
        if self._complete:
            raise hypercorn_h2.BufferCompleteError
        self.buffer.extend(data)
        await self._is_empty.clear()
        if len(self.buffer) >= HIGH_WATER:
            await self._paused.clear()
            await self._paused.wait()

    async def pop(self, max_length: int) -> bytes:
        data = bytes(self.buffer[:max_length])
        del self.buffer[:max_length]
        self._on_sent(len(data))
        if len(self.buffer) < LOW_WATER:
            await self._paused.set()
        return data


class GuardedHTTP2(hypercorn_h2.H2Protocol):
    def __init__(self, arguments: ProtocolArguments, send_timeout: float) -> None:
        super().__init__(*arguments)
        config = arguments.config
        self.connection.local_settings = h2.settings.Settings(
            client=False,
            initial_values={
                h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS: config.h2_max_concurrent_streams,
                h2.settings.SettingCodes.MAX_HEADER_LIST_SIZE: config.h2_max_header_list_size,
            },
        )
        self._send_timeout = send_timeout
        self._budget = FrameBudget()
        self._cutter = FrameCutter()
        self._late: set[int] = set()  # answered streams that will be reset

    def let_go(self) -> None:
        """Nothing comes any more. h2's table of its own methods would keep it for the collector."""
        vars(self.connection).get("_frame_dispatch_table", {}).clear()

    async def handle(self, event: ConnectionEvent) -> None:
        if not isinstance(event, RawData):
            await super().handle(event)
            return
        for piece, price in self._cutter.cut(event.data):
            if not self._budget.spend(price):
                await self._refuse("a flood of small frames", h2.errors.ErrorCodes.ENHANCE_YOUR_CALM)
            await super().handle(RawData(piece))
            await trio.lowlevel.checkpoint()
            if self.closed:
                return
        await self.send(Updated(idle=not self.streams))

    def _earn_for(self, sent: int) -> None:
        """A large piece is many frames, and clients open both windows after each. One byte at a time earns nothing."""
        self._budget.earn(ANSWERING_FRAMES * sent / PIECE_BYTES)

    async def stream_send(self, event: Event) -> None:
        if isinstance(event, Response | Body):
            self._budget.earn(ANSWERING_FRAMES)
        # The end cancels the handler, which sends it: unshielded, the connection would not hear that it is idle, and a
        # server that drains would wait for a client that keeps it open.
        with trio.move_on_after(self._send_timeout, shield=isinstance(event, StreamClosed)) as deadline:
            await super().stream_send(event)
        if deadline.cancelled_caught:
            await self._reset(event.stream_id, h2.errors.ErrorCodes.CANCEL)
            await self._close_stream(event.stream_id)
            await self.send(Updated(idle=not self.streams))  # the client may never say another word

    async def _send_data(self, stream_id: int) -> None:
        buffer = self.stream_buffers[stream_id]
        await super()._send_data(stream_id)
        if stream_id not in self.stream_buffers:  # its end was sent, or cannot be any more
            await buffer.close()

    async def _handle_events(self, events: Sequence[h2.events.Event]) -> None:
        for event in events:
            if isinstance(event, h2.events.PriorityUpdated):
                continue
            if isinstance(event, h2.events.DataReceived) and event.stream_id not in self.streams:
                await self._drop_late_data(event)
                continue
            if isinstance(event, h2.events.RequestReceived) and self.context.terminated.is_set():
                await self._reset(event.stream_id, h2.errors.ErrorCodes.REFUSED_STREAM)  # so it is safe to ask again
                continue
            await super()._handle_events([event])

    async def _create_stream(self, request: h2.events.RequestReceived) -> None:
        pseudo = {name: value for name, value in request.headers if name.startswith(b":")}
        method, path = pseudo.get(b":method", b""), pseudo.get(b":path", b"")
        valid_target = path.startswith(b"/") or (method, path) == (b"OPTIONS", b"*")
        names = [name for name, _ in request.headers]
        repeated = any(names.count(name) > 1 for name in ONCE)
        if method == b"CONNECT" or repeated or not (METHOD.fullmatch(method) and path.isascii() and valid_target):
            await self._refuse("a malformed request", h2.errors.ErrorCodes.PROTOCOL_ERROR)
        stream_id = request.stream_id
        stream = HTTPStream(
            self.app,
            self.config,
            self.context,
            self.task_group,
            self.ssl,
            self.client,
            self.server,
            self.stream_send,
            stream_id,
        )
        self.streams[stream_id] = stream
        self.stream_buffers[stream_id] = BoundedStreamBuffer(self.context.event_class, self._earn_for)
        self.priority.insert_stream(stream_id)
        self.priority.block(stream_id)
        await stream.handle(
            Request(
                stream_id=stream_id,
                headers=filter_pseudo_headers(request.headers),
                http_version="2",
                method=method.decode("ascii"),
                raw_path=path,
                state=self.connection_state,
            )
        )
        self.keep_alive_requests += 1

    async def _drop_late_data(self, event: h2.events.DataReceived) -> None:
        if event.flow_controlled_length:
            self.connection.increment_flow_control_window(event.flow_controlled_length)  # the connection's alone
            await self._flush()
        if event.stream_id not in self._late:
            self._late.add(event.stream_id)
            self.task_group.spawn(self._reset_late, event.stream_id)  # pyright: ignore  untyped in hypercorn

    async def _reset_late(self, stream_id: int) -> None:
        await trio.sleep(LATE_RESET_SECONDS)
        self._late.discard(stream_id)
        if stream_id not in self.stream_buffers:  # else the end of the answer is still being sent
            await self._reset(stream_id, h2.errors.ErrorCodes.NO_ERROR)

    async def _reset(self, stream_id: int, code: h2.errors.ErrorCodes) -> None:
        try:
            self.connection.reset_stream(stream_id, code)
        except h2.exceptions.ProtocolError:
            return  # closed already
        await self._flush()

    async def _refuse(self, reason: str, code: h2.errors.ErrorCodes) -> None:
        self.connection.close_connection(code)
        await self._flush()
        await self.send(Closed())
        raise ConnectionRefused(f"{reason} ({code.name})")

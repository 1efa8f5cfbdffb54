"""HTTP/2 as hypercorn speaks it, with every buffer bounded and no frame that can end the process.

- If a client grants no window, a stream holds at most 32 KiB plus one chunk, and its producer waits. After
  `send_timeout` without progress the stream is reset.
- A malformed request (a method or path that is not ASCII, CONNECT) and a flood of control frames close the connection.
- DATA for an already answered request (an upload over the size limit) is dropped. The stream is reset with
  NO_ERROR, as RFC 9113 8.1 asks, so that the client keeps its answer.
- PRIORITY is ignored (RFC 9113 5.3), and WebSockets are offered only over HTTP/1.1.
"""

from collections.abc import Awaitable, Callable, Sequence

import h2.errors
import h2.events
import h2.exceptions
import h2.settings
import trio
from hypercorn.config import Config
from hypercorn.events import Closed
from hypercorn.events import Event as ConnectionEvent
from hypercorn.protocol import h2 as hypercorn_h2
from hypercorn.protocol.events import Event, Request
from hypercorn.protocol.http_stream import HTTPStream
from hypercorn.typing import AppWrapper, ConnectionState, TaskGroup, WorkerContext
from hypercorn.utils import filter_pseudo_headers

from .http1 import ConnectionRefused

HIGH_WATER = 2**15  # two frames of the default size: enough to keep a fast client busy
LOW_WATER = HIGH_WATER // 2
CONTROL_BURST = 500  # a browser that closes every tab at once sends about 100
CONTROL_PER_SECOND = 50.0


class BoundedStreamBuffer(hypercorn_h2.StreamBuffer):
    """A buffer that stays bounded. hypercorn's wakes the producer even if nothing was taken, so it grew forever."""

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
        if len(self.buffer) < LOW_WATER:
            await self._paused.set()
        if not self.buffer:
            await self._is_empty.set()
        return data


class ControlBudget:
    """A token bucket over frames that cost the server work but carry no data of the client."""

    def __init__(self) -> None:
        self._left = float(CONTROL_BURST)
        self._seen = trio.current_time()

    def spend(self) -> bool:
        now = trio.current_time()
        self._left = min(float(CONTROL_BURST), self._left + (now - self._seen) * CONTROL_PER_SECOND) - 1
        self._seen = now
        return self._left >= 0


class GuardedHTTP2(hypercorn_h2.H2Protocol):
    def __init__(
        self,
        app: AppWrapper,
        config: Config,
        context: WorkerContext,
        task_group: TaskGroup,
        connection_state: ConnectionState,
        ssl: bool,
        client: tuple[str, int] | None,
        server: tuple[str, int] | None,
        send: Callable[[ConnectionEvent], Awaitable[None]],
        send_timeout: float,
    ) -> None:
        super().__init__(app, config, context, task_group, connection_state, ssl, client, server, send)
        self.connection.local_settings = h2.settings.Settings(
            client=False,
            initial_values={
                h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS: config.h2_max_concurrent_streams,
                h2.settings.SettingCodes.MAX_HEADER_LIST_SIZE: config.h2_max_header_list_size,
            },
        )
        self._send_timeout = send_timeout
        self._control = ControlBudget()

    async def stream_send(self, event: Event) -> None:
        with trio.move_on_after(self._send_timeout) as deadline:
            await super().stream_send(event)
        if deadline.cancelled_caught:
            await self._reset(event.stream_id, h2.errors.ErrorCodes.CANCEL)
            await self._close_stream(event.stream_id)

    async def _handle_events(self, events: Sequence[h2.events.Event]) -> None:
        for event in events:
            if _is_control(event) and not self._control.spend():
                await self._refuse("a flood of control frames", h2.errors.ErrorCodes.ENHANCE_YOUR_CALM)
            if isinstance(event, h2.events.PriorityUpdated):
                continue
            if isinstance(event, h2.events.DataReceived) and event.stream_id not in self.streams:
                await self._drop_late_data(event)
                continue
            await super()._handle_events([event])

    async def _create_stream(self, request: h2.events.RequestReceived) -> None:
        pseudo = {name: value for name, value in request.headers if name.startswith(b":")}
        method, path = pseudo.get(b":method", b""), pseudo.get(b":path", b"")
        valid_target = path.startswith(b"/") or (method, path) == (b"OPTIONS", b"*")
        if method == b"CONNECT" or not (method.isascii() and path.isascii() and valid_target):
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
        self.stream_buffers[stream_id] = BoundedStreamBuffer(self.context.event_class)
        self.priority.insert_stream(stream_id)
        self.priority.block(stream_id)
        await stream.handle(
            Request(
                stream_id=stream_id,
                headers=filter_pseudo_headers(request.headers),
                http_version="2",
                method=method.decode("ascii").upper(),
                raw_path=path,
                state=self.connection_state,
            )
        )
        self.keep_alive_requests += 1

    async def _drop_late_data(self, event: h2.events.DataReceived) -> None:
        self.connection.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        if event.stream_id not in self.stream_buffers:  # else the end of the answer is still being sent
            await self._reset(event.stream_id, h2.errors.ErrorCodes.NO_ERROR)
        await self._flush()

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


def _is_control(event: h2.events.Event) -> bool:
    if isinstance(event, h2.events.DataReceived):
        return not event.data and event.stream_ended is None
    return isinstance(
        event,
        h2.events.PriorityUpdated | h2.events.PingReceived | h2.events.RemoteSettingsChanged | h2.events.StreamReset,
    )

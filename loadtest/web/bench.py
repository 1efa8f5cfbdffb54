"""The parts of the benchmark, run one after the other, each with its own servers."""

import os
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from msgspec import Struct

from ..process import ServerProcess, serving
from .held_streams import Wire
from .idle import Idle, idle_cost
from .memory import STEP_SECONDS, StreamMemory, allow_descriptors, stream_memory
from .paced import INTERVAL, Paced, paced
from .rates import STREAMS, Rate, raw_rate, sse_rate, websocket_rate
from .script import Script
from .setup_cost import SetUp, request_set_up
from .stalled import NEIGHBOURS, TIMEOUT, Stalled, stalled_readers

COALESCED: Final = 16  # tokens per step for a lagging stream

OPEN_STREAMS: Final = 3000


class Cores(Struct, frozen=True, kw_only=True):
    """The processes' cores; None: left to the system, because there is no second core."""

    server: int | None
    client: int | None

    @staticmethod
    def of_this_machine() -> "Cores":
        usable = sorted(os.sched_getaffinity(0))
        return Cores(server=usable[0], client=usable[-1]) if len(usable) > 1 else Cores(server=None, client=None)


class Bench(Struct, kw_only=True):
    """Settings of a run."""

    model: Path
    cores: Cores
    script: Script
    seconds: float
    streams: int = STREAMS  # of a rate
    profile: Path | None = None

    @contextmanager
    def server(
        self, *, pace: str = "at-once", tokens_per_row: int = 1, streams: int | None = None, more: tuple[str, ...] = ()
    ) -> Generator[ServerProcess]:
        streams = self.streams if streams is None else streams
        command = [sys.executable, "-m", "triolet.cli.bench_web_server", str(self.model), "--port", "0"]
        command += ["--max-running", str(streams), "--max-requests", str(streams + 64)]
        command += ["--max-step-tokens", str(1 << 16)]
        command += ["--pace", pace, "--tokens-per-row", str(tokens_per_row)]
        if self.cores.server is not None:
            command += ["--cpu", str(self.cores.server), "--worker-cpu", str(self.cores.client)]
        if self.profile is not None:
            command += ["--profile", str(self.profile)]
        with serving([*command, *more]) as server:
            yield server

    def raw(self) -> Rate:
        command = [sys.executable, "-m", "triolet.loadtest.web.raw_server"]
        if self.cores.server is not None:
            command.append(str(self.cores.server))
        with serving(command) as server:
            return raw_rate(server, self.seconds, self.streams)

    def sse(self) -> Rate:
        with self.server(pace="in-turn") as server:
            return sse_rate(server, self.script, self.seconds, self.streams)

    def sse_coalesced(self) -> Rate:
        with self.server(tokens_per_row=COALESCED) as server:
            return sse_rate(server, self.script, self.seconds, self.streams, COALESCED)

    def websocket(self) -> Rate:
        with self.server(pace="in-turn") as server:
            return websocket_rate(server, self.script, self.seconds, self.streams)

    def steady(self) -> Paced:
        return self._paced(256)

    def late(self) -> Paced:
        return self._paced(512)

    def _paced(self, streams: int) -> Paced:
        with self.server(pace=repr(INTERVAL), streams=streams) as server:
            return paced(server, self.script, streams, self.seconds + 2)

    def idle(self) -> Idle:
        with self.server() as server:
            return idle_cost(server, self.script, self.seconds + 2, self.streams)

    def two_fronts(self) -> Rate:
        """The same load through two web processes: the server's cost per event."""
        with self.server(pace="in-turn", more=("--web-processes", "2")) as server:
            return sse_rate(server, self.script, self.seconds, self.streams)

    def memory(self, wire: Wire) -> StreamMemory:
        streams = allow_descriptors(OPEN_STREAMS)
        with self.server(pace=repr(STEP_SECONDS), streams=streams) as server:
            return stream_memory(server, wire, streams)

    def stalled(self) -> Stalled:
        readers = allow_descriptors(OPEN_STREAMS)
        limits = (
            option
            for name in ("send-timeout", "stall-timeout", "keep-alive-interval")
            for option in (f"--{name}", str(TIMEOUT))
        )
        with self.server(pace=repr(INTERVAL), streams=readers + NEIGHBOURS, more=tuple(limits)) as server:
            return stalled_readers(server, self.script, readers, self.seconds + 2)

    def set_up(self) -> SetUp:
        with self.server() as server:
            return request_set_up(server, int(200 * self.seconds))


PARTS: Final[dict[str, Callable[[Bench], Struct]]] = {
    "raw": Bench.raw,
    "sse": Bench.sse,
    "coalesced": Bench.sse_coalesced,
    "websocket": Bench.websocket,
    "two-fronts": Bench.two_fronts,
    "steady": Bench.steady,
    "late": Bench.late,
    "setup": Bench.set_up,
    "idle": Bench.idle,
    "memory-http1": lambda bench: bench.memory("http1"),
    "memory-http2": lambda bench: bench.memory("http2"),
    "memory-websocket": lambda bench: bench.memory("websocket"),
    "stalled": Bench.stalled,
}

"""Each hostile input beside four streams that are read: `python -m triolet.loadtest.chaos.hostile --out FILE.json`.

Three parts of the same length in one run: quiet, hostile, quiet. In each the canaries' texts must be the same, and the
gaps between their tokens are compared. An input beside which a canary waited longer than STALL is sent again, in turn
with quiet waits: a busy machine stalls in both, an input that holds the event loop stalls its own turns. The exit
status is 1 if a process died, a text changed, an answer was a 500 or told too much, or an input stalled each time.
"""

import argparse
import json
import re
import sys
import tempfile
from collections import Counter
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any, Final

import trio
from msgspec import Struct, structs

from ..client.client import HttpClient
from ..client.dial import Dialer, Endpoint, read_url
from ..machine import machine, versions
from ..process import TRIOLET, ServerProcess, resident_bytes, serving
from ..serve.quantiles import quantile
from .client import read_stream
from .hostile_inputs import Hostile, inputs

CANARIES: Final = 4
TOKENS: Final = 200
STALL: Final = 0.05  # seconds between two tokens of a canary
WAIT: Final = 1.0  # seconds for an answer; what waits for more of the input is left then
AGAIN: Final = 7
MOST_READ: Final = 1 << 20
LEAKS: Final = re.compile(rb'0x[0-9a-f]{6,}|Traceback|File "|/home/|/root/')
_STATUS: Final = re.compile(rb"HTTP/1\.[01] (\d+)")
_CODE: Final = re.compile(rb'"code": ?"(\w+)"|"error_code": ?"(\w+)"')


class HostileAnswer(Struct, frozen=True, kw_only=True):
    surface: str
    name: str
    answer: str  # a status and code, frames, or how the connection ended
    stall: float  # the canaries' longest gap meanwhile, seconds


class CanaryGaps(Struct, kw_only=True):
    """The canaries' gaps while something goes on."""

    name: str
    seconds: float = 0.0
    tokens: int = 0
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    most_ms: float = 0.0
    above_50_ms: int = 0


class HostileResult(Struct, kw_only=True):
    parts: list[CanaryGaps] = []
    answers: list[HostileAnswer] = []
    # Of the inputs that were sent again, until one time shows no stall: the longest gap, and that of a wait behind it.
    stalls: dict[str, list[tuple[float, float]]] = {}
    deaths: int = 0
    changed: int = 0
    leaks: list[str] = []
    faults: list[str] = []  # of canaries
    health: str = ""  # at the end
    ledger: dict[str, Any] = {}  # Any: JSON

    def judged(self) -> list[str]:
        again = [
            name
            for name, pairs in self.stalls.items()
            if min(beside for beside, _ in pairs) > STALL  # else it was sent no more
            and median(beside for beside, _ in pairs) > 2 * median(quiet for _, quiet in pairs)
        ]
        broken = [answer.name for answer in self.answers if answer.answer.startswith("500")]
        checks = {
            f"status 500: {broken}": len(broken),
            f"{self.deaths} processes died": self.deaths,
            f"{self.changed} texts of canaries were changed": self.changed,
            f"answers tell too much: {self.leaks[:3]}": len(self.leaks),
            f"canaries failed: {self.faults[:3]}": len(self.faults),
            f"these stall again and again: {again}": len(again),
            f"health: {self.health}": self.health != "200",
            f"requests are left: {self.ledger.get('requests')}": self.ledger.get("requests", 1),
        }
        return [text for text, count in checks.items() if count]


class Run:
    def __init__(self, server: Endpoint, pid: int) -> None:
        self.result = HostileResult()
        self._server, self._pid = server, pid
        self._root, self._api = HttpClient(server), HttpClient(structs.replace(server, path="/v1"))
        self._texts: dict[int, str] = {}
        self._last = [0.0] * CANARIES  # when each had its last token; 0: between two answers
        self._longest = 0.0
        self._gaps: list[float] = []

    async def run(self, chosen: list[Hostile], quiet_seconds: float) -> HostileResult:
        process = ServerProcess(self._pid)
        worker = process.largest_child()
        async with trio.open_nursery() as nursery:
            for number in range(CANARIES):
                nursery.start_soon(self._sing, number)
            await trio.sleep(3.0)  # the first answers begin late
            await self._part("quiet", trio.sleep, quiet_seconds)
            seconds = await self._part("hostile", self._send_all, chosen)
            await self._part("quiet again", trio.sleep, seconds)
            for input in chosen:
                stalled = next(
                    a.stall for a in self.result.answers if (a.surface, a.name) == (input.surface, input.name)
                )
                if stalled > STALL:
                    pairs = self.result.stalls[f"{input.surface}: {input.name}"] = []
                    while len(pairs) < AGAIN and (not pairs or pairs[-1][0] > STALL):
                        pairs.append(await self._compare(input))
            nursery.cancel_scope.cancel()
        self.result.deaths = (process.largest_child() != worker) + (not resident_bytes(self._pid))
        async with self._root.request("GET", "/health/ready") as (response, _sent, _reused):
            self.result.health = str(response.head.status)
        with trio.move_on_after(20):
            while self.result.ledger.get("requests", 1):
                await trio.sleep(0.1)
                self.result.ledger = json.loads(await self._root.fetch("GET", "/internal/ledger"))
        return self.result

    async def _part(self, name: str, do: Any, what: object) -> float:  # Any: sleep, or `_send_all`
        self._gaps, began = [], trio.current_time()
        await do(what)
        seconds, gaps = trio.current_time() - began, sorted(self._gaps)
        self.result.parts.append(
            CanaryGaps(
                name=name,
                seconds=round(seconds, 1),
                tokens=len(gaps),
                p50_ms=round(quantile(gaps, 0.5) * 1e3, 2),
                p99_ms=round(quantile(gaps, 0.99) * 1e3, 2),
                most_ms=round(gaps[-1] * 1e3, 1),
                above_50_ms=sum(gap > STALL for gap in gaps),
            )
        )
        return seconds

    async def _sing(self, number: int) -> None:
        def token() -> None:
            now = trio.current_time()
            if last := self._last[number]:
                self._gaps.append(now - last)
                self._longest = max(self._longest, now - last)
            self._last[number] = now

        while True:
            self._last[number] = 0.0
            stream = await read_stream(self._api, number, TOKENS, token)
            if stream.error or stream.ends != 1:
                self.result.faults.append(stream.error or f"{stream.ends} ends")
            else:
                self.result.changed += self._texts.setdefault(number, stream.text) != stream.text

    async def _send_all(self, chosen: list[Hostile]) -> None:
        for input in chosen:
            self.result.answers.append(await self._send(input))

    async def _compare(self, input: Hostile) -> tuple[float, float]:
        """The canaries' longest gap beside this input, and in a wait of the same length behind it."""
        began = trio.current_time()
        beside = (await self._send(input)).stall
        took, self._longest = trio.current_time() - began, 0.0
        await trio.sleep(took)
        return beside, self._stall()

    def _stall(self) -> float:
        """The canaries' longest gap since `_longest` was set back; one that still lasts counts too."""
        now = trio.current_time()
        return round(max(self._longest, *(now - last for last in self._last if last), 0.0), 4)

    async def _send(self, input: Hostile) -> HostileAnswer:
        self._longest, received, ending = 0.0, b"", "waits"
        with trio.move_on_after(WAIT), suppress(OSError, trio.BrokenResourceError):
            async with await Dialer(self._server).connect(slow=False) as stream, trio.open_nursery() as nursery:
                nursery.start_soon(_write, stream, input.data)
                while len(received) < MOST_READ and (data := await stream.receive_some(65536)):
                    received += data
                ending = "closed"
                nursery.cancel_scope.cancel()
        await trio.sleep(0.02)
        if LEAKS.search(received):
            self.result.leaks.append(f"{input.surface}: {input.name}: {received[:300]!r}")
        return HostileAnswer(surface=input.surface, name=input.name, answer=told(received, ending), stall=self._stall())


async def _write(stream: trio.abc.Stream, data: bytes) -> None:
    with suppress(trio.BrokenResourceError):
        await stream.send_all(data)


def told(received: bytes, ending: str) -> str:
    """The class of an answer."""
    statuses = Counter(status.decode() for status in _STATUS.findall(received))
    if statuses:
        told = [status if count == 1 else f"{count} × {status}" for status, count in statuses.items()]
        told += sorted({(one or other).decode() for one, other in _CODE.findall(received)})
        rest = received.rpartition(b"\r\n\r\n")[2] if b"101" in received[:20] else b""
        if len(rest) >= 4 and rest[0] == 0x88:
            told.append(f"closing frame {int.from_bytes(rest[2:4], 'big')}")
        return " ".join([*told, ending])
    frames: list[str] = []
    while len(received) >= 9:
        size, kind = int.from_bytes(received[:3], "big"), received[3]
        payload, received = received[9 : 9 + size], received[9 + size :]
        if kind in (3, 7):
            error = int.from_bytes(payload[-4:] if kind == 3 else payload[4:8], "big")
            frames.append(f"{'reset' if kind == 3 else 'goaway'} {error}")
        elif kind == 1:
            frames.append("headers")
    return " ".join([*dict.fromkeys(frames), ending])


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m triolet.loadtest.chaos.hostile",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quiet-seconds", type=float, default=60.0, help="of the first quiet part")
    parser.add_argument("--only", default="", help="inputs whose surface and name match this expression")
    parser.add_argument("--out", type=Path, help="where to write the result")
    options = parser.parse_args()
    chosen = [input for input in inputs() if re.search(options.only, f"{input.surface}: {input.name}")]
    with tempfile.TemporaryFile() as errors, tempfile.TemporaryDirectory() as data:
        command = [TRIOLET, "serve", "--port", "0", "--data", data, "--log-level", "error"]
        with serving(command, errors) as server:
            address = read_url(f"http://127.0.0.1:{server.port}", path="")
            result = trio.run(Run(address, server.pid).run, chosen, options.quiet_seconds)
    report = {
        "machine": structs.asdict(machine()),
        "versions": versions("trio", "hypercorn", "h2"),
        "command": " ".join(["python -m triolet.loadtest.chaos.hostile", *sys.argv[1:]]),
        "judged": result.judged() or "nothing died, changed, told too much or stalled",
        "inputs": len(chosen),
        "answers_by_class": dict(Counter(answer.answer for answer in result.answers).most_common()),
        **{name: value for name, value in structs.asdict(result).items() if name not in ("parts", "answers")},
        "parts": [structs.asdict(part) for part in result.parts],
        "answers": {f"{a.surface}: {a.name}": [a.answer, a.stall] for a in result.answers},
    }
    if options.out:
        options.out.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps({name: value for name, value in report.items() if name != "answers"}, indent=1))
    raise SystemExit("; ".join(result.judged()) or None)


if __name__ == "__main__":
    main()

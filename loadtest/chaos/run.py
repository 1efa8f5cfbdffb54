"""One chaos run: the troubles in turn, and what clients and health said meanwhile."""

import json
import os
import random
import signal
from contextlib import suppress
from statistics import median
from typing import Any, Final, Literal

import trio
from msgspec import Struct, structs

from ..client.client import HttpClient
from ..client.dial import Endpoint
from ..client.ending import Fault
from ..machine import Machine
from ..process import ServerProcess
from .client import Stream, leave_early, read_stream

Kind = Literal["kill", "crash", "hang"]
SIGNALS: Final[dict[Kind, signal.Signals]] = {
    "kill": signal.SIGKILL,
    "crash": signal.SIGUSR2,
    "hang": signal.SIGUSR1,
}
LEFT: Final = ("tasks", "fds", "children")  # of the front, in its ledger: no more than before
HEALTH_SECONDS: Final = 0.05  # between two questions
CALM_TOKENS: Final = 20  # of each stream, between a recovery and the next trouble
PATIENCE: Final = 120.0  # seconds for a recovery, or for calm
TOLD_SECONDS: Final = 5.0  # until health tells: it promises two, and the machine may be busy
SETTLE_SECONDS: Final = 1.0  # until all files are open that a server opens with its first requests
MOST_LOST: Final = 100  # streams, after which it is clear


class Plan(Struct, frozen=True, kw_only=True):
    streams: int = 64
    tokens: int = 160  # of each answer
    each: int = 10  # troubles of each kind
    leavers: int = 4
    rows: int = 64
    seed: int = 1


class Trouble(Struct, kw_only=True):
    """Seconds are after the trouble."""

    kind: Kind
    at: float  # of the run
    told: float | None = None  # when health first said that the server is not ready
    ready: float | None = None  # when it was ready again
    token: float | None = None  # when the first token came from the next worker


class ChaosResult(Struct, kw_only=True):
    plan: Plan
    troubles: list[Trouble] = []
    complete: int = 0  # streams that ended well
    changed: int = 0  # whose text was another
    lost: list[str] = []  # errors of streams
    left: int = 0  # clients that left in the middle
    ends: int = 0  # streams with other than one terminal event
    tokens: list[float] = []  # when each came, seconds of the run
    before: dict[str, Any] = {}  # Any: JSON; the ledger once all streams were read undisturbed
    ledger: dict[str, Any] = {}  # at the end
    load_seconds: list[float] = []  # of each new worker, from the loss on, by the server's log

    def faults(self) -> list[str]:
        """What a run must not show."""
        blocks = self.ledger["kv_blocks"]
        checks = {
            f"{self.changed} answers were changed": self.changed,
            f"{len(self.lost)} streams were lost: {self.lost[:3]}": len(self.lost),
            f"{self.ends} streams had not one end": self.ends,
            f"requests are left: {self.ledger['requests']}": self.ledger["requests"],
            f"KV blocks are owned: {blocks}": blocks["owned"],
            **{f"{name} are left": max(0, self.ledger[name] - self.before[name]) for name in LEFT},
            "health never told of a trouble": sum(trouble.told is None for trouble in self.troubles),
            "health told late of a trouble": sum((trouble.told or 0.0) > TOLD_SECONDS for trouble in self.troubles),
            f"no token came within {PATIENCE:g} s": sum(trouble.token is None for trouble in self.troubles),
        }
        return [text for text, count in checks.items() if count]

    def report(self, machine: Machine, versions: dict[str, str]) -> dict[str, Any]:
        """For the file: without the times of single tokens."""
        figures: dict[str, dict[str, float]] = {}
        for kind in SIGNALS:
            of_kind = [trouble for trouble in self.troubles if trouble.kind == kind]
            for name in ("told", "ready", "token"):
                values = [value for trouble in of_kind if (value := getattr(trouble, name)) is not None]
                if values:
                    figures[f"{kind}: {name}"] = {"median": round(median(values), 3), "most": round(max(values), 3)}
        return {
            "machine": structs.asdict(machine),
            "versions": versions,
            "plan": structs.asdict(self.plan),
            "seconds": figures,
            "worker_start_seconds": sorted(self.load_seconds),
            "streams": {
                "complete": self.complete,
                "changed": self.changed,
                "lost": self.lost,
                "not_one_end": self.ends,
                "left_by_their_clients": self.left,
            },
            "tokens": len(self.tokens),
            "ledger_before": self.before,
            "ledger": self.ledger,
            "troubles": [structs.asdict(trouble) for trouble in self.troubles],
        }


class Chaos:
    def __init__(self, server: Endpoint, pid: int, plan: Plan) -> None:
        self.result = ChaosResult(plan=plan)
        self._plan = plan
        self._pid = pid
        self._api, self._root = HttpClient(server), HttpClient(structs.replace(server, path=""))
        self._expected: dict[int, str] = {}
        self._began = trio.current_time()
        self._token = trio.Event()  # the next one
        self._over = False
        self._trouble: Trouble | None = None

    @property
    def _now(self) -> float:
        return trio.current_time() - self._began

    async def run(self) -> ChaosResult:
        """All streams once undisturbed, then again and again through the troubles."""
        async with trio.open_nursery() as nursery:
            for number in range(self._plan.streams):
                nursery.start_soon(self._learn, number)
        await self._api.close()
        await trio.sleep(SETTLE_SECONDS)
        self.result.before = before = await self._settled(None)
        rng = random.Random(self._plan.seed)
        kinds = list(SIGNALS) * self._plan.each
        rng.shuffle(kinds)
        async with trio.open_nursery() as around:
            around.start_soon(self._ask_health)
            for _ in range(self._plan.leavers):
                around.start_soon(leave_early, self._api, rng, self._plan.tokens, self._plan.streams, self._note_left)
            async with trio.open_nursery() as nursery:
                for number in range(self._plan.streams):
                    nursery.start_soon(self._stream_on, number)
                for kind in kinds:
                    if len(self.result.lost) < MOST_LOST:
                        await self._cause(kind)
                self._over = True
            around.cancel_scope.cancel()
        await self._api.close()
        self.result.ledger = await self._settled(before)
        return self.result

    async def _learn(self, number: int) -> None:
        stream = await read_stream(self._api, number, self._plan.tokens, lambda: None)
        assert stream.ends == 1, stream
        self._expected[number] = stream.text

    async def _stream_on(self, number: int) -> None:
        while not self._over and len(self.result.lost) < MOST_LOST:
            self._judge(await read_stream(self._api, number, self._plan.tokens, self._note_token))

    def _judge(self, stream: Stream) -> None:
        result = self.result
        result.ends += stream.ends != 1
        if stream.error:
            result.lost.append(stream.error)
        elif stream.text != self._expected[stream.client]:
            result.changed += 1
        else:
            result.complete += 1

    def _note_left(self) -> None:
        self.result.left += 1

    def _note_token(self) -> None:
        self.result.tokens.append(self._now)
        self._token.set()
        self._token = trio.Event()

    async def _cause(self, kind: Kind) -> None:
        """Wait until all goes well, then let it happen, and wait for the next worker's first token."""
        with trio.move_on_after(PATIENCE):
            for _ in range(CALM_TOKENS * self._plan.streams):
                await self._token.wait()
        worker = self._worker()
        trouble = self._trouble = Trouble(kind=kind, at=self._now)
        self.result.troubles.append(trouble)
        os.kill(worker, SIGNALS[kind])
        with trio.move_on_after(PATIENCE):
            while trouble.ready is None or self._worker() == worker:  # noqa: ASYNC110 - a process gives no event
                await trio.sleep(HEALTH_SECONDS)
            while trouble.token is None:
                await self._token.wait()
                if self._now - trouble.at > trouble.ready - HEALTH_SECONDS:
                    trouble.token = self._now - trouble.at
        self._trouble = None

    def _worker(self) -> int:
        """0 while there is none."""
        return ServerProcess(self._pid).largest_child() or 0

    async def _ask_health(self) -> None:
        while True:
            ready = False
            with suppress(Fault):
                async with self._root.request("GET", "/health/ready") as (response, _sent, _reused):
                    ready = response.head.status == 200
                    await response.read()
            if (trouble := self._trouble) is not None:
                after = self._now - trouble.at
                if not ready and trouble.told is None:
                    trouble.told = after
                elif ready and trouble.told is not None and trouble.ready is None:
                    trouble.ready = after
            await trio.sleep(HEALTH_SECONDS)

    async def _settled(self, before: dict[str, Any] | None) -> dict[str, Any]:  # Any: JSON
        """The ledger once nothing is left of any request, or as it is after some patience."""
        ledger: dict[str, Any] = {}
        with trio.move_on_after(PATIENCE):
            while True:
                ledger = json.loads(await self._root.fetch("GET", "/internal/ledger"))
                left = ledger["requests"] + ledger["kv_blocks"]["owned"]
                if not left and (before is None or all(ledger[name] <= before[name] for name in LEFT)):
                    break
                await trio.sleep(HEALTH_SECONDS)
        return ledger

    async def close(self) -> None:
        await self._api.close()
        await self._root.close()


async def run_chaos(server: Endpoint, pid: int, plan: Plan) -> ChaosResult:
    chaos = Chaos(server, pid, plan)
    try:
        return await chaos.run()
    finally:
        await chaos.close()

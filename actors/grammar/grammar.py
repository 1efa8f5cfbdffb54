"""The grammar actor: a request that wants its answer in a form goes on to admission when its grammar is accepted.

Grammars that were compiled before pass at once. The others wait for the compiler's process, where API keys take turns:
whatever one key sends, another's next grammar waits for two of its grammars at most, of
3 s of CPU time each. How many may wait is bounded by the places for requests (--max-requests).
"""

import logging
from typing import Final

import trio
from msgspec import structs

from ...protocol.errors import ApiError
from ...protocol.grammars import GrammarRefused, OpenCompiler
from ...protocol.messages import ToAdmission, ToGrammar, Tokenized
from ..gateway.gateway import Gateway
from ..turns import LinesByKey
from .compiler import GrammarCompiler
from .verdicts import Verdict, Verdicts

_LOG: Final = logging.getLogger("triolet.grammars")
_MIN_SWEPT: Final = 128  # waiting requests; fewer hold little memory


async def run_grammar(
    inbox: trio.MemoryReceiveChannel[ToGrammar],
    admission: trio.MemorySendChannel[ToAdmission],
    *,
    opening: OpenCompiler,
    gateway: Gateway,
) -> None:
    """Serve until the inbox ends."""
    compiler = GrammarCompiler(opening)
    try:
        with inbox, admission:
            async with trio.open_nursery() as nursery:
                desk = _Queue(admission, compiler, gateway, nursery)
                nursery.start_soon(desk.keep_compiling)
                async for tokenized in inbox:
                    await desk.take(tokenized)
                nursery.cancel_scope.cancel()
    finally:
        await compiler.aclose()


class _Queue:
    """The requests that wait, and the verdicts known so far."""

    def __init__(
        self,
        admission: trio.MemorySendChannel[ToAdmission],
        compiler: GrammarCompiler,
        gateway: Gateway,
        nursery: trio.Nursery,
    ) -> None:
        self._admission = admission
        self._compiler = compiler
        self._gateway = gateway
        self._verdicts = Verdicts()
        self._lines = LinesByKey[Tokenized]()
        self._work = trio.Event()
        self._nursery = nursery
        self._deadlines: dict[str, trio.CancelScope] = {}  # tasks that end requests, as long as these wait

    async def take(self, tokenized: Tokenized) -> None:
        source = tokenized.request.grammar_source
        assert source is not None
        if verdict := self._verdicts.get(source):
            await self._settle(tokenized, verdict)
            return
        self._gateway.compiling(tokenized.request.id)
        if (due := tokenized.request.first_due) is not None:
            scope = self._deadlines[tokenized.request.id] = trio.CancelScope()
            self._nursery.start_soon(self._end_at, due, tokenized.request.id, scope)
        self._lines.add(tokenized.request.tenant, tokenized)
        if len(self._lines) > max(_MIN_SWEPT, 2 * self._gateway.live_requests):  # most were cancelled
            self._lines.keep(lambda waiting: self._gateway.is_live(waiting.request.id))
        self._work.set()

    async def keep_compiling(self) -> None:
        """One grammar after another, until cancelled."""
        while True:
            await self._work.wait()
            while self._lines:
                tokenized = self._lines.next()
                verdict = await self._verdict_for(tokenized)
                if scope := self._deadlines.pop(tokenized.request.id, None):
                    scope.cancel()
                if verdict and self._gateway.is_live(tokenized.request.id):
                    await self._settle(tokenized, verdict)
            self._work = trio.Event()

    async def _end_at(self, deadline: float, id: str, scope: trio.CancelScope) -> None:
        with scope:
            await trio.sleep_until(deadline)
            if self._deadlines.pop(id, None):  # otherwise it has gone on meanwhile
                message = "the request's deadline passed before its grammar was compiled"
                self._gateway.fail(id, ApiError("deadline_exceeded", message))

    async def _verdict_for(self, tokenized: Tokenized) -> Verdict | None:
        """None if the request has ended, as it does if its grammar can get none."""
        id, source = tokenized.request.id, tokenized.request.grammar_source
        assert source is not None
        if not self._gateway.is_live(id):
            return None
        if verdict := self._verdicts.get(source):
            return verdict
        try:
            verdict = await self._compiler.compile(source)
        except ApiError as error:
            self._gateway.fail(id, error)
            return None
        self._verdicts.keep(source, verdict)
        return verdict

    async def _settle(self, tokenized: Tokenized, verdict: Verdict) -> None:
        request = tokenized.request
        source = request.grammar_source
        assert source is not None
        if isinstance(verdict, GrammarRefused):
            param = (verdict.param or source.param) + verdict.place
            error = ApiError("invalid_grammar", f"{param}: {verdict.message}.", param=param)
            self._gateway.fail(request.id, error)
            return
        for warning in verdict.warnings:
            _LOG.warning("%s %s: %s; the answer may not follow them", request.name or request.id, source.param, warning)
        request = structs.replace(request, grammar=verdict.grammar, grammar_memory=verdict.memory, grammar_source=None)
        await self._admission.send(structs.replace(tokenized, request=request))

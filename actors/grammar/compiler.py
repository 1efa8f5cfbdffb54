"""The front's end of the compiler's process: started at the first grammar, kept, and replaced after it was ended.

Every web process has its own. Compiling is rare, since verdicts are kept; a process of its own needs no messages
between the fronts, and a grammar that ends it disturbs one front only. It costs the tokenizer's memory once more.
"""

import logging
import signal
from typing import Final

import msgspec
import trio

from ...protocol.errors import ApiError
from ...protocol.grammars import (
    CompileGrammar,
    CompilerReady,
    FromCompiler,
    GrammarAccepted,
    GrammarRefused,
    GrammarSource,
    OpenCompiler,
)
from ..supervisor.child_process import ChildProcess
from ..supervisor.link import Link, LinkError

_LOG: Final = logging.getLogger("triolet.grammars")
_MODULE: Final = "triolet.actors.grammar.compiler_process"
_DECODER: Final = msgspec.msgpack.Decoder[FromCompiler](FromCompiler)
START_SECONDS: Final = 60.0  # with a tokenizer of tens of megabytes, on a busy machine
CLOCK_SECONDS: Final = 30.0  # for one grammar: if it gets no CPU time, or waits for something


class GrammarCompiler:
    """One process at a time, and one grammar at a time in it."""

    def __init__(self, opening: OpenCompiler) -> None:
        self._opening = opening
        self._child: ChildProcess | None = None
        self._link: Link[FromCompiler]  # set with it

    @property
    def pid(self) -> int | None:
        """Of the process, if there is one now."""
        return None if self._child is None else self._child.pid

    async def compile(self, source: GrammarSource) -> GrammarAccepted | GrammarRefused:
        """Raises ApiError for what another try may change: the machine is too busy, or no process can be had."""
        if self._child is None:
            await self._start()
        try:
            with trio.fail_after(CLOCK_SECONDS):
                await self._link.send(CompileGrammar(source=source))
                answer = await self._link.receive()
        except trio.TooSlowError:
            await self.aclose()
            problem = f"{source.param}: compiling it took more than {CLOCK_SECONDS:g} s; make it simpler, or try again."
            raise ApiError("invalid_grammar", problem, param=source.param) from None
        except (trio.EndOfChannel, trio.BrokenResourceError, LinkError):
            status, how = await self._end()
            if (excess := self._excess(-status)) is None:
                raise _unavailable(how) from None
            return GrammarRefused(message=excess)
        assert not isinstance(answer, CompilerReady)
        return answer

    async def _start(self) -> None:
        try:
            self._child = ChildProcess("grammar compiler", _MODULE, self._opening)
        except OSError as error:
            raise _unavailable(f"the grammar compiler cannot be started: {error}") from None
        self._link = Link(self._child.stream, _DECODER)
        try:
            with trio.fail_after(START_SECONDS):
                ready = await self._link.receive()
        except (trio.TooSlowError, trio.EndOfChannel, LinkError):
            _, how = await self._end()
            raise _unavailable(how) from None
        assert isinstance(ready, CompilerReady)
        if ready.problem:
            await self._end()
            raise ApiError("unsupported_parameter", f"this model cannot follow grammars: {ready.problem}")

    def _excess(self, signal_number: int) -> str | None:
        """The limit that the grammar exceeded; None if the process ended for another reason."""
        match signal_number:
            case signal.SIGXCPU:
                return f"compiling it takes more than {self._opening.cpu_seconds} s of CPU time; make it simpler"
            case signal.SIGABRT:
                return f"compiling it takes more than {self._opening.memory >> 20} MiB of memory; make it simpler"
            case signal.SIGSEGV:
                return "it is nested too deeply"
            case _:
                return None

    async def aclose(self) -> None:
        """End the process, if there is one; the next grammar starts another."""
        if self._child is not None:
            await self._end()

    async def _end(self) -> tuple[int, str]:
        """The process's status and how it ended, in words."""
        assert self._child is not None
        child, self._child = self._child, None
        how = await child.end()
        return child.status, how


def _unavailable(how: str) -> ApiError:
    _LOG.error("%s", how)
    return ApiError("engine_unavailable", f"{how}; try again", retry_after=1)

"""The process that compiles grammars: one by one, long ones with a low priority, within limits of CPU and memory.

`python -m triolet.actors.grammar.compiler_process FD`, started only by `GrammarCompiler`. A grammar that exceeds a
limit ends the process: the library cannot be stopped otherwise in the middle of its work. CPU time is counted instead
of time on the clock, since a busy machine must not refuse what an idle one accepts.
"""

import os
import resource
import socket
import sys
from contextlib import suppress
from functools import partial
from typing import Final

import msgspec

from ...models.checkpoint.grammar import COMPILER_STACK, open_grammar_tokenizer
from ...models.errors import CheckpointError
from ...models.low_priority import at_low_priority
from ...protocol.grammars import CompileGrammar, CompilerReady, OpenCompiler, ToCompiler
from ..executor.blocking_link import BlockingLink
from ..supervisor.child_process import die_with_parent
from .allocated import allocate_from_one_heap, allocated_bytes
from .compile import compile_grammar

_DECODER: Final = msgspec.msgpack.Decoder[ToCompiler](ToCompiler)


def serve(link: BlockingLink[ToCompiler]) -> None:
    """Read the tokenizer of the first message, then compile until the front is gone."""
    first = link.receive()
    assert isinstance(first, OpenCompiler), f"the first message is {type(first).__name__}, not OpenCompiler"
    try:
        tokenizer = open_grammar_tokenizer(first.model, first.vocab_size, first.eos_token_ids)
    except CheckpointError as error:
        link.send(CompilerReady(problem=str(error)))
        return
    _silence_the_library()
    _limit_memory(first.memory)
    link.send(CompilerReady())
    while True:
        message = link.receive()
        assert isinstance(message, CompileGrammar), f"a second {type(message).__name__}"
        _limit_cpu_time(first.cpu_seconds)
        try:
            compiling = partial(compile_grammar, message.source, tokenizer, allocated_bytes)
            verdict = at_low_priority(compiling, stack=COMPILER_STACK)
        except MemoryError:
            os.abort()  # as the library does
        link.send(verdict)


def _silence_the_library() -> None:
    """What Rust prints as it aborts would fill the server's log, at any client's will. Our tracebacks still come."""
    sys.stderr = open(os.dup(2), "w", buffering=1)  # noqa: SIM115  # until the process ends
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def _limit_memory(more: int) -> None:
    """Beyond this an allocation fails, which aborts the process."""
    with open("/proc/self/statm") as statistics:
        pages = int(statistics.read().split()[0])
    limit = pages * resource.getpagesize() + more
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _limit_cpu_time(more: int) -> None:
    """From now on; the kernel then sends SIGXCPU, which nothing here handles."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    seconds = int(usage.ru_utime + usage.ru_stime) + 1 + more
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, resource.RLIM_INFINITY))


def main() -> None:
    die_with_parent()
    allocate_from_one_heap()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # an abort is a verdict here
    with suppress(EOFError, OSError):  # the front is gone
        serve(BlockingLink(socket.socket(fileno=int(sys.argv[1])), _DECODER))


if __name__ == "__main__":
    main()

"""The compiler's process: it is kept, and what exceeds a limit ends it and nothing else."""

import json
import os
import signal
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from triolet.actors.grammar import compiler as compiler_module
from triolet.actors.grammar.compiler import GrammarCompiler
from triolet.protocol.errors import ApiError
from triolet.protocol.grammars import GrammarAccepted, GrammarRefused, GrammarSource, OpenCompiler

from ..engine_house import MODEL

OPENING = OpenCompiler(model=MODEL, vocab_size=2048, eos_token_ids=(0,))
LETTERS = GrammarSource(kind="regex", text="[a-z]+", param="p")


@pytest.fixture
async def compiler() -> AsyncGenerator[GrammarCompiler, None]:
    async with aclosing(GrammarCompiler(OPENING)) as compiler:
        yield compiler


def schema(value: Any) -> GrammarSource:  # Any: a JSON value
    return GrammarSource(kind="json_schema", text=json.dumps(value), param="p")


def chain(length: int) -> dict[str, object]:
    """Definitions that each need the next one."""
    steps = {f"d{at}": {"properties": {"a": {"$ref": f"#/$defs/d{at + 1}"}}} for at in range(length)}
    return {"$ref": "#/$defs/d0", "$defs": {**steps, f"d{length}": {"type": "null"}}}


BOMB = schema({"type": "integer", "multipleOf": 99999999})
DEEP = schema(chain(5000))


@pytest.mark.parametrize(
    ("bomb", "limits", "words"),
    [
        (BOMB, {"cpu_seconds": 1, "memory": 1 << 40}, "more than 1 s of CPU time"),
        (BOMB, {"cpu_seconds": 60, "memory": 64 << 20}, "more than 64 MiB of memory"),
        (DEEP, {}, "nested too deeply"),
    ],
    ids=["time", "memory", "nesting"],
)
async def test_a_bomb_is_refused_and_the_next_grammar_is_compiled(
    bomb: GrammarSource,
    limits: dict[str, int],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(compiler_module, "CLOCK_SECONDS", 300.0)  # a busy machine gives it little time
    async with aclosing(GrammarCompiler(msgspec.structs.replace(OPENING, **limits))) as compiler:
        verdict = await compiler.compile(bomb)
        assert isinstance(verdict, GrammarRefused)
        assert words in verdict.message
        assert isinstance(await compiler.compile(LETTERS), GrammarAccepted)
    assert capfd.readouterr() == ("", "")


async def test_a_bug_of_ours_is_told(compiler: GrammarCompiler, capfd: pytest.CaptureFixture[str]) -> None:
    await compiler.compile(LETTERS)
    await compiler._link.send(OPENING)
    with pytest.raises(ApiError, match="grammar compiler"):
        await compiler.compile(LETTERS)
    assert "AssertionError: a second OpenCompiler" in capfd.readouterr().err


async def test_large_grammars_are_accepted_up_to_the_memory_limit(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They take 90 of the 128 MiB: addresses that are reserved, and what one grammar has left, do not count."""
    monkeypatch.setattr(compiler_module, "CLOCK_SECONDS", 300.0)  # a busy machine gives it little time
    for name in "ab":
        fields = {f"{name}{number * 7919 % 10_000_019}": {"type": "integer"} for number in range(13_000)}
        verdict = await compiler.compile(schema({"properties": fields, "required": [*fields]}))
        assert isinstance(verdict, GrammarAccepted), verdict
        assert 16 << 20 < verdict.memory < 64 << 20  # what is left of it once it is built
    small = await compiler.compile(LETTERS)
    assert isinstance(small, GrammarAccepted)
    assert 1 << 10 < small.memory < 4 << 20


async def test_the_process_is_kept_and_replaced_when_somebody_kills_it(compiler: GrammarCompiler) -> None:
    assert compiler.pid is None  # it starts with the first grammar
    await compiler.compile(LETTERS)
    first = compiler.pid
    await compiler.compile(DEEP)
    second = compiler.pid
    assert second is None
    await compiler.compile(LETTERS)
    third = compiler.pid
    assert first is not None
    assert third not in (None, first)
    assert isinstance(third, int)
    os.kill(third, signal.SIGKILL)
    with pytest.raises(ApiError, match="SIGKILL") as failure:
        await compiler.compile(LETTERS)
    assert failure.value.code == "engine_unavailable"
    assert isinstance(await compiler.compile(LETTERS), GrammarAccepted)


async def test_a_tokenizer_that_the_library_cannot_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    compiler = GrammarCompiler(OpenCompiler(model=str(tmp_path), vocab_size=2048, eos_token_ids=()))
    with pytest.raises(ApiError, match=r"cannot follow grammars: .*error loading tokenizer"):
        await compiler.compile(LETTERS)
    assert compiler.pid is None


async def test_a_grammar_that_gets_no_answer_is_given_up(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    await compiler.compile(LETTERS)
    assert compiler.pid is not None
    os.kill(compiler.pid, signal.SIGSTOP)
    with monkeypatch.context() as patch:
        patch.setattr(compiler_module, "CLOCK_SECONDS", 0.1)
        with pytest.raises(ApiError, match=r"^p: compiling it took more than 0\.1 s") as failure:
            await compiler.compile(LETTERS)
    assert (failure.value.code, failure.value.param) == ("invalid_grammar", "p")
    assert isinstance(await compiler.compile(LETTERS), GrammarAccepted)

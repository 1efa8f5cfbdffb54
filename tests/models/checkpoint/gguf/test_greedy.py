"""Greedy tokens of the bundled model, read from GGUF files, are those of llama.cpp from the same files."""

import json
from functools import partial
from pathlib import Path

import pytest
import trio

from triolet.actors.engine import Engine, run_engine
from triolet.protocol.settings import EngineSettings, LimitSettings, ServeSettings

from ...test_parity_engine import generate_all
from .bundled import ENDS, GREEDY, NEW_TOKENS, TYPES, prompts, write_bundled

MAX_MODEL_LEN = 128


async def answers(path: Path) -> list[list[int]]:
    engine_settings = EngineSettings(
        model=str(path), threads=1, max_model_len=MAX_MODEL_LEN, kv_cache_memory=32 << 20, max_step_tokens=64
    )
    settings = ServeSettings(engine=engine_settings, limits=LimitSettings(outbox_tokens=256), inline=True)
    async with trio.open_nursery() as nursery:
        engine: Engine = await nursery.start(partial(run_engine, settings))
        found = await generate_all(engine, prompts(), NEW_TOKENS)
        nursery.cancel_scope.cancel()
    return found


async def differing(path: Path, kind: str) -> list[list[int]]:
    """The prompts whose answers are not llama.cpp's."""
    expected = json.loads(GREEDY.read_text())[kind]
    assert sum(tokens[-1] in ENDS for tokens in expected) > len(expected) / 2  # real answers, that end
    pairs = zip(prompts(), await answers(path), expected, strict=True)
    return [prompt for prompt, ours, theirs in pairs if ours[: len(theirs)] != theirs]


@pytest.mark.parametrize("kind", TYPES)
async def test_tokens_are_those_of_llama_cpp(tmp_path: Path, kind: str) -> None:
    assert await differing(write_bundled(tmp_path / f"{kind}.gguf", kind), kind) == []


async def test_a_planted_error_is_noticed(tmp_path: Path) -> None:
    wrong = {"llama.rope.freq_base": 1_000.0}
    assert len(await differing(write_bundled(tmp_path / "m.gguf", "Q8_0", **wrong), "Q8_0")) > 3

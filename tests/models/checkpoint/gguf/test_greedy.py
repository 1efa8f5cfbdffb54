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


@pytest.mark.parametrize("kind", TYPES)
async def test_tokens_are_those_of_llama_cpp(tmp_path: Path, kind: str) -> None:
    expected = json.loads(GREEDY.read_text())[kind]
    found = await answers(write_bundled(tmp_path / f"{kind}.gguf", kind))
    different = [
        (prompt, ours, theirs)
        for prompt, ours, theirs in zip(prompts(), found, expected, strict=True)
        if ours[: len(theirs)] != theirs
    ]
    assert different == []
    assert sum(tokens[-1] in ENDS for tokens in expected) > len(expected) / 2  # real answers, that end

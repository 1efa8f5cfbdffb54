"""The engine with the GPU's kernels interpreted: the same streams as on the CPU, through every actor and the executor.

`--kernels interpret` walks all of the GPU's path: device-resident ids, graphs, two steps in flight.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
from tokenizers import Tokenizer, models

from triolet.actors.engine import Engine, run_engine
from triolet.actors.gateway.outbox import Outbox
from triolet.loadtest.device.gpu_model_values import small_weights
from triolet.loadtest.device.random_adapter import merged, random_adapter
from triolet.loadtest.device.random_model import config_of, write_tensors
from triolet.models.checkpoint.safetensors import WeightArray
from triolet.protocol.adapters import Adapter
from triolet.protocol.events import Failed, Finished, StreamEvent, Token
from triolet.protocol.requests import Generate, TokenPrompt
from triolet.protocol.sampling import Sampling
from triolet.protocol.settings import AdapterPlaces, EngineSettings, LimitSettings, ServeSettings

from ..adapter_cases import write_adapter
from .gpu_house import SPEC, clear_prompt

BLOCK_BYTES = SPEC.num_layers * 2 * SPEC.num_kv_heads * 64 * SPEC.head_dim * 2  # in bfloat16
NEW_TOKENS = 5
ADAPTER = random_adapter(SPEC, 2, rank=8, scale=1.0)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint")
    (folder / "config.json").write_text(json.dumps(config_of(SPEC) | {"attention_bias": True}))
    tensors: dict[str, WeightArray] = {}
    small_weights(SPEC, tensors)
    for layer in range(SPEC.num_layers):  # part of attention_bias
        tensors[f"model.layers.{layer}.self_attn.o_proj.bias"] = np.zeros(SPEC.hidden_size, np.float32)
    write_tensors(folder / "model.safetensors", tensors)
    write_adapter(folder / "adapter", ADAPTER)
    words = {f"word{index}": index for index in range(SPEC.vocab_size)}
    Tokenizer(models.WordLevel(words, unk_token="word0")).save(str(folder / "tokenizer.json"))
    return folder


@asynccontextmanager
async def running(folder: Path, **settings: Any) -> AsyncGenerator[Engine]:
    fields: dict[str, Any] = {"model": str(folder), "max_running": 2, "max_step_tokens": 8, "threads": 1, **settings}
    serve = ServeSettings(engine=EngineSettings(**fields), limits=LimitSettings(), inline=True)
    async with trio.open_nursery() as nursery:
        yield await nursery.start(partial(run_engine, serve))
        nursery.cancel_scope.cancel()


def submit(
    engine: Engine,
    prompt: tuple[int, ...],
    stop_token_ids: tuple[int, ...] = (),
    sampling: Sampling | None = None,
    adapter: Adapter | None = None,
) -> Outbox:
    request = Generate(
        id=engine.gateway.new_id(), model=engine.model_name, prompts=(TokenPrompt(token_ids=prompt),),
        sampling=sampling or sampling_of(), max_tokens=NEW_TOKENS, ignore_eos=True, stop_token_ids=stop_token_ids,
        adapter=adapter,
    )  # fmt: skip
    return engine.gateway.submit(request)


async def read(outbox: Outbox) -> list[int]:
    events: list[StreamEvent] = []
    while True:
        try:
            events += await outbox.drain()
        except trio.EndOfChannel:
            break
    assert not any(isinstance(event, Failed) for event in events), events[-1]
    assert isinstance(events[-1], Finished)
    scores = [score for event in events if isinstance(event, Token) for score in event.logprobs]
    return [score.token_id for score in scores if not score.stops]


def mask_of(tokens: set[int]) -> bytes:
    return sum(1 << token for token in tokens).to_bytes(4 * -(-SPEC.vocab_size // 32), "little")


def sampling_of(**fields: Any) -> Sampling:
    return Sampling(temperature=0.0, logprobs=0, **fields)


async def generate(engine: Engine, folder: Path) -> list[list[int]]:
    """Three requests, two at a time, one of them longer than a step; then one of them alone, and one that stops.

    Then one prompt with an adapter and without, in one batch.
    """
    prompts = [clear_prompt(11, 1, NEW_TOKENS), clear_prompt(3, 2, NEW_TOKENS), clear_prompt(5, 3, NEW_TOKENS)]
    outboxes = [submit(engine, prompt) for prompt in prompts]
    together = [await read(outbox) for outbox in outboxes]
    alone = await read(submit(engine, prompts[1]))
    assert alone == together[1]
    stopped = await read(submit(engine, prompts[0], stop_token_ids=(together[0][2],)))
    assert stopped == together[0][:2]
    first, second, third, *_ = together[0]
    others = sampling_of(allowed_tokens=mask_of(set(range(SPEC.vocab_size)) - {first}))
    assert (await read(submit(engine, prompts[0], sampling=others)))[0] != first
    only = sampling_of(allowed_tokens=mask_of({*together[0]}))
    assert await read(submit(engine, prompts[0], sampling=only)) == together[0]
    banned = await read(submit(engine, prompts[0], sampling=sampling_of(bad_words=((first, third), (second, third)))))
    assert banned[:2] == [first, second]
    assert banned[2] != third
    prompt = clear_prompt(5, 4, NEW_TOKENS, merged(small_weights(SPEC), ADAPTER))
    pair = [submit(engine, prompt, adapter=Adapter("own", str(folder / "adapter"))), submit(engine, prompt)]
    own, base = [await read(outbox) for outbox in pair]
    assert own != base
    return [*together, own]


async def test_streams_are_those_of_the_cpu(checkpoint: Path) -> None:
    places = AdapterPlaces(count=1)
    cpu: dict[str, Any] = {"device": "cpu", "dtype": "float32", "kv_cache_memory": 32 << 20}
    async with running(checkpoint, adapter_places=places, **cpu) as engine:
        expected = await generate(engine, checkpoint)
    gpu: dict[str, Any] = {"device": "cuda", "kernels": "interpret", "kv_cache_memory": 9 * BLOCK_BYTES}
    async with running(checkpoint, adapter_places=places, **gpu) as engine:
        assert engine.ready is not None
        assert engine.ready.device.startswith("rehearsal")
        assert engine.ready.memory.num_blocks == 9
        assert await generate(engine, checkpoint) == expected
        while engine.scheduler_statistics().steps_in_flight:  # noqa: ASYNC110 - the scheduler gives no event
            await trio.sleep(0.002)
        totals = engine.scheduler_statistics().totals
    assert [len(tokens) for tokens in expected] == [NEW_TOKENS] * 4
    assert totals.wasted_tokens == 1  # drawn behind the stop token, by the step that was under way
    assert (totals.device_allocations, totals.device_compilations) == (0, 0)

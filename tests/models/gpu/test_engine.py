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
import safetensors.torch
import trio
from tokenizers import Tokenizer, models

from triolet.actors.engine import Engine, run_engine
from triolet.actors.gateway.outbox import Outbox
from triolet.loadtest.device.random_adapter import merged, random_adapter
from triolet.models.checkpoint.weights import NormWeights
from triolet.models.gpu.staging import host_tensor
from triolet.protocol.adapters import Adapter
from triolet.protocol.events import Failed, Finished, StreamEvent, Token
from triolet.protocol.requests import Generate, TokenPrompt
from triolet.protocol.sampling import Sampling
from triolet.protocol.settings import AdapterPlaces, EngineSettings, LimitSettings, ServeSettings

from ..adapter_cases import write_adapter
from .gpu_house import SPEC, clear_prompt, weights_of

BLOCK_BYTES = SPEC.num_layers * 2 * SPEC.num_kv_heads * 64 * SPEC.head_dim * 2  # in bfloat16
NEW_TOKENS = 5
ADAPTER = random_adapter(SPEC, 2, rank=8, scale=1.0)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint")
    config = {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": SPEC.vocab_size,
        "hidden_size": SPEC.hidden_size, "intermediate_size": SPEC.mlp_size, "num_hidden_layers": SPEC.num_layers,
        "num_attention_heads": SPEC.num_heads, "num_key_value_heads": SPEC.num_kv_heads, "head_dim": SPEC.head_dim,
        "max_position_embeddings": SPEC.max_position, "rms_norm_eps": SPEC.norm_eps, "attention_bias": True,
        "rope_theta": 10_000.0,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    weights = weights_of(SPEC)
    assert weights.lm_head is not None
    tensors = {"model.embed_tokens": weights.embedding, "lm_head": weights.lm_head}
    tensors["model.norm"] = weights.final_norm.gain
    for index, layer in enumerate(weights.layers):
        for name, place in {
            "q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj", "o": "self_attn.o_proj",
            "gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj", "q_norm": "self_attn.q_norm",
            "k_norm": "self_attn.k_norm", "input_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm",
        }.items():  # fmt: skip
            found = getattr(layer, name)
            if isinstance(found, NormWeights):
                found = found.gain
            tensors[f"model.layers.{index}.{place}"] = found[0] if name in ("q_norm", "k_norm") else found
    named = {f"{name}.weight": host_tensor(array) for name, array in tensors.items()}
    for index, layer in enumerate(weights.layers):
        for name in ("q", "k", "v"):
            named[f"model.layers.{index}.self_attn.{name}_proj.bias"] = host_tensor(getattr(layer, f"{name}_bias"))
        zeros = host_tensor(np.zeros(SPEC.hidden_size, np.float32))  # part of attention_bias
        named[f"model.layers.{index}.self_attn.o_proj.bias"] = zeros
    safetensors.torch.save_file(
        {name: tensor.contiguous() for name, tensor in named.items()}, folder / "model.safetensors"
    )
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
    prompt = clear_prompt(5, 4, NEW_TOKENS, merged(weights_of(SPEC), ADAPTER))
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

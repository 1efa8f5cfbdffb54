"""Makers for unit tests: a gateway wired to channels that the test reads itself, a request, a worker's Ready."""

from typing import Any, NamedTuple

import trio

from triolet.actors.gateway.gateway import Gateway
from triolet.actors.gateway.quotas import Quotas
from triolet.protocol.messages import ToScheduler, ToTokenizer
from triolet.protocol.requests import Generate, TextPrompt
from triolet.protocol.sampling import Sampling
from triolet.protocol.settings import LimitSettings
from triolet.protocol.steps import MemoryPlan, Ready


class Wired(NamedTuple):
    """A gateway and the channels behind it."""

    gateway: Gateway
    tokenizer: trio.MemoryReceiveChannel[ToTokenizer]
    scheduler: trio.MemoryReceiveChannel[ToScheduler]
    to_scheduler: trio.MemorySendChannel[ToScheduler]

    def scheduler_messages(self) -> list[ToScheduler]:
        messages: list[ToScheduler] = []
        while True:
            try:
                messages.append(self.scheduler.receive_nowait())
            except trio.WouldBlock:
                return messages


def wire(limits: LimitSettings | None = None, *, several_tenants: bool = False, quotas: Quotas | None = None) -> Wired:
    limits = limits or LimitSettings()
    to_tokenizer, tokenizer = trio.open_memory_channel[ToTokenizer](limits.max_requests)
    to_scheduler, scheduler = trio.open_memory_channel[ToScheduler](1000)
    gateway = Gateway(
        limits, tokenizer=to_tokenizer, scheduler=to_scheduler, several_tenants=several_tenants, quotas=quotas
    )
    return Wired(gateway, tokenizer, scheduler, to_scheduler)


def generate(id: str = "r1", **changes: Any) -> Generate:
    fields: dict[str, Any] = {"prompts": (TextPrompt(text="the fox"),), "sampling": Sampling(), "max_tokens": 16}
    return Generate(id=id, model="tiny", **(fields | changes))


def make_ready(**changes: Any) -> Ready:
    fields: dict[str, Any] = {
        "model": "tiny",
        "architecture": "LlamaForCausalLM",
        "parameters": 1000,
        "device": "cpu",
        "dtype": "float32",
        "quantize": "none",
        "context_length": 256,
        "vocab_size": 400,
        "eos_token_ids": (1,),
        "max_step_tokens": 64,
        "max_running": 8,
        "memory": MemoryPlan(
            weights_bytes=1,
            workspace_bytes=1,
            kv_bytes=1,
            num_blocks=16,
            block_size=64,
            sequences_at_full_length=4.0,
        ),
        "sampling_defaults": {},
        "versions": {},
        "pid": 1,
    }
    return Ready(**(fields | changes))

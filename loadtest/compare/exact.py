"""Exact match of the bundled model under a variant: its held-out instances, answered greedily by the engine."""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import click
import msgspec
import trio
from msgspec import Struct

from ...actors.engine import Engine, open_engine
from ...cli.options import BUNDLED_MODEL
from ...cli.process import run_or_refuse
from ...protocol.events import Failed, Token
from ...protocol.requests import ChatPrompt, Generate
from ...protocol.sampling import Sampling
from ...protocol.settings import EngineSettings, ServeSettings
from ...protocol.steps import LoadProgress
from ..heldout import LONGEST_ANSWER, Instance

AT_ONCE: Final = 16  # instances in a batch


class ExactMatch(Struct, frozen=True, kw_only=True):
    """How many held-out instances of the bundled model were answered right."""

    name: str
    instances: int
    right: int
    families: dict[str, float]  # share right, by family


def measure_exact_match(
    name: str, settings: EngineSettings, instances: Sequence[Instance], on_progress: Callable[[LoadProgress], None]
) -> ExactMatch:
    """`settings` are a variant's; the model is the bundled one."""
    verdicts: list[bool | None] = [None] * len(instances)
    engine_settings = msgspec.structs.replace(
        settings, model=str(BUNDLED_MODEL), max_model_len=None, max_running=AT_ONCE
    )

    async def measure() -> None:
        waiting = iter(enumerate(instances))
        settings = ServeSettings(engine=engine_settings)
        async with open_engine(settings, on_progress) as engine, trio.open_nursery() as nursery:
            for _ in range(AT_ONCE):
                nursery.start_soon(_answer_all, engine, waiting, verdicts)

    run_or_refuse(measure)
    groups: dict[str, list[bool]] = {}
    for instance, verdict in zip(instances, verdicts, strict=True):
        assert verdict is not None, "every instance was answered"
        groups.setdefault(instance.family, []).append(verdict)
    return ExactMatch(
        name=name,
        instances=len(instances),
        right=sum(map(sum, groups.values())),
        families={family: sum(group) / len(group) for family, group in groups.items()},
    )


async def _answer_all(engine: Engine, waiting: Iterator[tuple[int, Instance]], verdicts: list[bool | None]) -> None:
    """One of several workers, each taking the next instance."""
    for index, instance in waiting:
        prompt = ChatPrompt(messages=instance.messages)
        request = Generate(
            id=engine.gateway.new_id(),
            model=engine.model_name,
            prompts=(prompt,),
            sampling=Sampling(temperature=0.0),
            max_tokens=LONGEST_ANSWER,
        )
        text = ""
        async for event in engine.stream(request):
            match event:
                case Token(text=piece):
                    text += piece
                case Failed(code=code, message=message):
                    raise click.ClickException(f"a held-out instance failed: {message} ({code})")
                case _:
                    pass
        verdicts[index] = instance.accepts(text)

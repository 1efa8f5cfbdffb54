"""Asks, in a process of its own, what several models need of memory: it imports the kernels, which the web does not."""

import sys

import msgspec
import trio
from msgspec import structs

from ..actors.several.parts import DoesNotFitTogether, Parts, divide
from ..models.host import has_nvidia_driver, usable_cores
from ..protocol.settings import ServeSettings
from ..protocol.steps import ModelNeeds
from .refusals import Refusal


async def parts_of(settings: ServeSettings) -> Parts:
    """What each model gets of this machine. Raises Refusal where --memory is too small, or is of no use."""
    needs = [] if settings.memory is None else await _needs_of(settings)
    try:
        return divide(settings, usable_cores(), needs)
    except DoesNotFitTogether as error:
        raise Refusal(str(error)) from error


async def _needs_of(settings: ServeSettings) -> list[ModelNeeds]:
    engine = settings.engine
    if engine.device == "cuda" or engine.kernels == "interpret" or (engine.device == "auto" and has_nvidia_driver()):
        raise Refusal("--memory is for models on the CPU: add --device cpu, or give each its part with --gpu-memory")
    asked = [structs.replace(engine, model=model.path) for model in settings.models]
    command = [sys.executable, "-m", "triolet.models.needs"]
    done = await trio.run_process(
        command, stdin=msgspec.json.encode(asked), capture_stdout=True, capture_stderr=True, check=False
    )
    if done.returncode:
        raise Refusal(done.stderr.decode(errors="replace").strip())
    return msgspec.json.decode(done.stdout, type=list[ModelNeeds])

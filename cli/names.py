"""MODEL, as it was given, becomes a folder or a file of this machine: what is a name on the hub is fetched.

In a process of its own, before anything starts: the hub's library stays out of the server's process, Ctrl-C ends it,
and a running server never waits for a download.
"""

import subprocess
import sys
from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import structs

from ..models.hub.names import hub_name
from ..models.hub.order import Fetched, Order, Wanted
from ..protocol.settings import EngineSettings, ServeSettings
from .refusals import Refusal, local_path, refuse_platform

FETCH_MODULE: Final = "triolet.models.hub.fetch"


def with_local_models(settings: ServeSettings) -> ServeSettings:
    """The settings with paths in the place of names. Raises Refusal."""
    if not settings.models:
        return structs.replace(settings, engine=with_local_model(settings.engine))
    engines = _with_paths([structs.replace(settings.engine, model=model.path) for model in settings.models])
    models = tuple(
        structs.replace(model, path=engine.model) for model, engine in zip(settings.models, engines, strict=True)
    )
    return structs.replace(settings, engine=engines[0], models=models)


def with_local_model(engine: EngineSettings) -> EngineSettings:
    """The same for the settings of one engine."""
    return _with_paths([engine])[0]


def _with_paths(engines: Sequence[EngineSettings]) -> list[EngineSettings]:
    refuse_platform()
    wanted = {
        engine.model: Wanted(name, engine.gguf_file)
        for engine in engines
        if (name := hub_name(engine.model)) is not None
    }
    paths = _fetch(list(wanted.values()), as_lines=engines[0].log_format == "text") if wanted else []
    fetched = dict(zip(wanted, paths, strict=True))
    return [structs.replace(engine, model=fetched.get(engine.model) or local_path(engine)) for engine in engines]


def _fetch(wanted: list[Wanted], *, as_lines: bool) -> list[str]:
    order = Order(wanted, bars=as_lines and sys.stderr.isatty(), lines=as_lines)
    command = [sys.executable, "-m", FETCH_MODULE]
    done = subprocess.run(command, input=msgspec.json.encode(order), stdout=subprocess.PIPE, check=False)
    if done.returncode:
        names = ", ".join(str(each.name) for each in wanted)
        raise Refusal(f"fetching {names} ended with status {done.returncode}: what it wrote above says why")
    answer = msgspec.json.decode(done.stdout, type=Fetched)
    if answer.problem:
        raise Refusal(answer.problem)
    return answer.paths

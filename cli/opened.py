"""A model's headers on this machine, whatever MODEL is: for commands that say something of it and load nothing."""

import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from msgspec import structs

from ..models.hub.names import hub_name
from ..models.hub.order import Wanted
from ..protocol.settings import EngineSettings
from .refusals import local_path


@contextmanager
def opened_headers(settings: EngineSettings) -> Generator[tuple[str, EngineSettings]]:
    """The model's name, and settings with its path, which is valid inside. Raises Refusal and LoadError."""
    name = hub_name(settings.model)
    if name is None:
        path = local_path(settings)
        yield Path(path).resolve().name, structs.replace(settings, model=path)
        return
    from ..models.hub.fetch import Hubs  # the hub's library takes half a second
    from ..models.hub.headers import fetch_headers

    with tempfile.TemporaryDirectory(prefix="triolet-headers-") as folder:
        path = str(fetch_headers(Wanted(name, settings.gguf_file), Hubs(), Path(folder)))
        yield str(name), structs.replace(settings, model=path)

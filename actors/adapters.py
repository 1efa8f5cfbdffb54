"""The LoRA adapters that a server offers: by name, and whether the worker can use one.

Each web process has the whole table, since it checks the names of its requests. With several of them, the scheduler's
process changes it and tells all (fronts/fronts.py).
"""

import os
from collections.abc import Callable, Iterable, Mapping

import trio

from ..protocol.adapters import Adapter
from ..protocol.errors import ApiError
from ..protocol.events import Failed, Finished
from ..protocol.requests import Generate, TokenPrompt
from ..protocol.sampling import Sampling
from ..protocol.settings import ServeSettings
from .gateway.gateway import Gateway


def given_adapters(settings: ServeSettings) -> list[Adapter]:
    """Those of the command line."""
    pairs = (text.partition("=") for text in settings.loras)
    return [Adapter(name, os.path.realpath(path)) for name, _, path in pairs]


class AdapterTable:
    """The adapters by name. `by_name` is replaced, never changed: other threads read it."""

    def __init__(self, model: str, given: Iterable[Adapter], on_gone: Callable[[Adapter], None]) -> None:
        """`on_gone`: no new request will name this one, with its content."""
        self.by_name: Mapping[str, Adapter] = {adapter.name: adapter for adapter in given}
        self._model = model
        self._on_gone = on_gone

    def check_new(self, name: str, *, replaces: bool) -> None:
        """Raises ApiError (400) for a name that is taken, or could be read as another one's."""
        if not name.strip() or ":" in name or name == "latest":
            raise ApiError("invalid_value", f"lora_name: {name!r} is no name of an adapter.", param="lora_name")
        if name == self._model:
            raise ApiError("invalid_value", f"lora_name: {name!r} is the model's name.", param="lora_name")
        if name in self.by_name and not replaces:
            message = f"The lora adapter {name!r} has already been loaded; send load_inplace: true to load it again."
            raise ApiError("invalid_value", message, param="lora_name")

    def put(self, adapter: Adapter, *, replaces: bool) -> None:
        """Raises ApiError (400) as `check_new`."""
        self.check_new(adapter.name, replaces=replaces)
        old = self.by_name.get(adapter.name)
        self.by_name = {**self.by_name, adapter.name: adapter}
        if old is not None:
            self._on_gone(old)

    def remove(self, name: str) -> None:
        """Raises ApiError (404)."""
        if name not in self.by_name:
            raise ApiError("not_found", f"The lora adapter {name!r} cannot be found.", param="lora_name")
        gone = self.by_name[name]
        self.by_name = {other: adapter for other, adapter in self.by_name.items() if other != name}
        self._on_gone(gone)

    def copy(self, adapters: Iterable[Adapter]) -> None:
        """Take over the table of the process that changes it."""
        self.by_name = {adapter.name: adapter for adapter in adapters}


async def try_adapter(gateway: Gateway, model: str, adapter: Adapter) -> None:
    """Have the worker load it and compute a token. Raises ApiError: 400 if the adapter is at fault."""
    request = Generate(
        id=gateway.new_id(),
        name=f"lora-{adapter.name}",
        model=model,
        prompts=(TokenPrompt(token_ids=(0,)),),
        sampling=Sampling(temperature=0.0),
        max_tokens=1,
        adapter=adapter,
        arrival_time=trio.current_time(),
    )
    outbox = gateway.submit(request)
    try:
        while True:
            last = (await outbox.drain())[-1]
            if isinstance(last, Failed):
                raise _refusal(last)
            if isinstance(last, Finished):
                return
    finally:
        gateway.cancel(request.id)


def _refusal(failed: Failed) -> ApiError:
    if failed.code in ("adapter_failed", "nonfinite_logits"):
        return ApiError("invalid_value", failed.message, param="lora_path")
    return ApiError("engine_unavailable", failed.message)

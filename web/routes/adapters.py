"""POST /v1/load_lora_adapter and /v1/unload_lora_adapter, as vLLM has them.

They are there if `--lora-folder` names a folder: adapters are read from it and from nowhere else, however a path is
written. They change what all clients see, so an operator's key opens them, where there is one.
"""

import os
from functools import partial
from typing import Final

import msgspec
from quart_trio.wrappers import TrioResponse as Response

from ...actors.observe.server import ModelEngine, Models
from ...protocol.adapters import LoadAdapterBody, UnloadAdapterBody
from ...protocol.errors import ApiError
from ..asgi import Application, current_exchange
from ..generation.models import served_model
from ..openai.decode import decode

_LOAD: Final = msgspec.json.Decoder(LoadAdapterBody)
_UNLOAD: Final = msgspec.json.Decoder(UnloadAdapterBody)


def register(app: Application) -> None:
    server = app.engine

    def model_and_folder() -> tuple[ModelEngine, str]:
        engine, folder = server.served, server.settings.lora_folder
        if isinstance(engine, Models):
            message = (
                "A server of several models has no adapters; start one for the model alone, with --lora-folder DIR."
            )
            raise ApiError("unsupported_endpoint", message)
        served_model(engine)  # refuses while it is loaded
        if folder is None:
            message = "This server loads no adapters while it runs: start it with --lora-folder DIR."
            raise ApiError("unsupported_endpoint", message)
        return engine, folder

    @app.post("/v1/load_lora_adapter")
    async def load_adapter() -> Response:
        engine, allowed = model_and_folder()
        body = await current_exchange().read_json(partial(decode, decoder=_LOAD))
        path = path_in(allowed, body.lora_path)
        await engine.load_adapter(body.lora_name, path, replaces=bool(body.load_inplace))
        return _said(f"Success: LoRA adapter '{body.lora_name}' added successfully.")

    @app.post("/v1/unload_lora_adapter")
    async def unload_adapter() -> Response:
        engine, _ = model_and_folder()
        body = await current_exchange().read_json(partial(decode, decoder=_UNLOAD))
        await engine.unload_adapter(body.lora_name)
        return _said(f"Success: LoRA adapter '{body.lora_name}' removed successfully.")


def path_in(folder: str, given: str) -> str:
    """The adapter's folder, without links. Raises ApiError (400) for one that is elsewhere, or is no adapter.

    What lies outside is not looked at: the answer must not say whether it exists.
    """
    base = os.path.realpath(folder)
    try:
        path = os.path.realpath(os.path.join(base, given))
    except ValueError as error:  # a NUL
        raise ApiError("invalid_value", f"lora_path: {error}.", param="lora_path") from None
    if os.path.commonpath((base, path)) != base or path == base:
        message = f"lora_path: {given[:200]!r} is not in the folder of --lora-folder; name one that is in it."
        raise ApiError("invalid_value", message, param="lora_path")
    if not os.path.isfile(os.path.join(path, "adapter_config.json")):
        message = f"lora_path: {given[:200]!r} has no adapter_config.json; name the folder of a PEFT adapter."
        raise ApiError("invalid_value", message, param="lora_path")
    return path


def _said(text: str) -> Response:
    return Response(text, content_type="text/plain; charset=utf-8")

"""LoRA adapters: what a request says of the one that it uses."""

from msgspec import Struct


class Adapter(Struct, frozen=True, array_like=True):
    """An adapter of the model, in PEFT's format."""

    name: str  # what clients call it
    path: str  # its folder
    load: int = 0  # which loading of this name: a folder may have another content the next time


class LoadAdapterBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/load_lora_adapter."""

    lora_name: str
    lora_path: str  # absolute, or relative to --lora-folder
    load_inplace: bool | None = None  # in place of one that has this name


class UnloadAdapterBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/unload_lora_adapter."""

    lora_name: str
    lora_int_id: int | None = None  # of vLLM, which ignores it as well

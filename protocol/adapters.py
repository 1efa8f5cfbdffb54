"""LoRA adapters: what a request says of the one that it uses."""

from msgspec import Struct


class Adapter(Struct, frozen=True, array_like=True):
    """An adapter of the model, in PEFT's format."""

    name: str  # what clients call it
    path: str  # its folder
    load: int = 0  # which loading of this name: a folder may have another content the next time

"""The models of a server that has several: what operators ask of them, and what they are told."""

from typing import Final, Literal

from msgspec import Struct

LATEST: Final = ":latest"  # what Ollama adds to a name without a tag
ModelState = Literal["unloaded", "loading", "ready", "draining", "failed"]


class ModelBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /models/load and /models/unload."""

    model: str  # its name, or an alias


class AliasBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /models/alias."""

    alias: str
    model: str | None = None  # whose name it is from now on; null: nobody's


class ModelStatus(Struct, frozen=True, kw_only=True):
    value: ModelState
    reason: str | None = None  # of a model that failed


class ServedModelEntry(Struct, frozen=True, kw_only=True):
    """One model; sizes in bytes, null until it has been loaded once."""

    id: str
    object: Literal["model"] = "model"
    aliases: list[str]
    status: ModelStatus
    requests: int  # unfinished
    context_length: int
    weights_bytes: int | None
    kv_bytes: int | None


class ServedModelList(Struct, frozen=True, kw_only=True):
    """GET /models."""

    object: Literal["list"] = "list"
    data: list[ServedModelEntry]


class ModelDone(Struct, frozen=True, kw_only=True):
    """What was asked for is done; `model` is how the model is now."""

    success: bool = True
    model: ServedModelEntry | None = None

"""`Server`: the web's interface to what is behind it, and `ModelEngine`: to one model of it.

`Engine` (actors/engine.py) is both, with all parts in this process. `FrontEngine` (actors/fronts/front.py) is both, for
one web process of several, and asks the scheduler's process. `Several` (actors/several/several.py) is a server of
several models and has an `Engine` for each that is loaded.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from types import MappingProxyType
from typing import Literal, NamedTuple, Protocol

import trio

from ...protocol.adapters import Adapter
from ...protocol.engine_view import AboutEngine, View
from ...protocol.explanation import Explanation
from ...protocol.flight import FlightRecording
from ...protocol.openai_responses import TokenizerInfo
from ...protocol.reports import Health, ServerReport
from ...protocol.requests import Prompt
from ...protocol.served_models import ServedModelEntry
from ...protocol.settings import ServeSettings
from ...protocol.steps import Ready
from ..gateway.gateway import Gateway
from ..gateway.gateways import Gateways


class ModelEngine(Protocol):
    """One model, as requests use it."""

    @property
    def settings(self) -> ServeSettings: ...

    @property
    def gateway(self) -> Gateway:
        """This process's gateway, which accepts requests for the model."""
        ...

    @property
    def model_name(self) -> str: ...

    @property
    def created(self) -> int:
        """Unix time of the start."""
        ...

    @property
    def ready(self) -> Ready | None:
        """The worker's last Ready message; None until the model is loaded for the first time."""
        ...

    async def tokenize(self, prompt: Prompt) -> tuple[int, ...]: ...

    async def detokenize(self, ids: tuple[int, ...]) -> str: ...

    async def tokenizer_info(self) -> TokenizerInfo: ...

    @property
    def adapters(self) -> Mapping[str, Adapter]:
        """The LoRA adapters that requests may name, by name. Never changed, but replaced."""
        ...

    async def load_adapter(self, name: str, path: str, *, replaces: bool) -> None:
        """Have the worker try it, and offer it. Raises ApiError: 400 if it cannot be used, or the name is taken."""
        ...

    async def unload_adapter(self, name: str) -> None:
        """Offer it no longer; requests that use it continue. Raises ApiError (404)."""
        ...

    async def explain(self, wanted: str, tenant: str) -> Explanation | None:
        """Where a request of this tenant is and why, by its id or X-Request-Id; None if it is unknown."""
        ...


class ListedModel(NamedTuple):
    """What clients are told of a model that they can name."""

    name: str  # or an alias
    model: str
    created: int
    context_length: int
    loaded: bool
    ready: Ready | None  # as of the last load; None: it was never loaded
    adapters: Mapping[str, Adapter] = MappingProxyType({})


class NamedEngine(NamedTuple):
    """A model that is loaded, and the name that its client knows it by: its own or an alias."""

    name: str
    engine: ModelEngine


Absent = Literal["load", "begin"]  # what to do with a model that is not loaded: wait for it, or raise ApiError


class Models(ABC):
    """The models of a server that has several."""

    @abstractmethod
    def use(
        self, name: str | None, fallbacks: Sequence[str], *, absent: Absent, deadline: float | None
    ) -> AbstractAsyncContextManager[NamedEngine]:
        """The model of this name, or of the first fallback that there is; None: the first model.

        `absent`: whether to load one that is not loaded, and to wait for it. It stays loaded in the block, and until
        the requests are answered that were submitted there. Raises ApiError: 404 if there is none of these names,
        503 if the model cannot be used, 504 at the deadline.
        """

    @abstractmethod
    def find(self, name: str | None, fallbacks: Sequence[str]) -> ListedModel:
        """What is known of the model that `use` would take, without loading it. Raises ApiError (404)."""

    @abstractmethod
    def listed(self) -> Sequence[ListedModel]:
        """The models, the first one first, and behind them the aliases."""

    @property
    @abstractmethod
    def engines(self) -> Sequence[ModelEngine]:
        """Those of the models that are loaded."""

    @abstractmethod
    def entries(self) -> list[ServedModelEntry]:
        """The state of each model."""

    @abstractmethod
    async def load(self, name: str) -> ServedModelEntry:
        """Load a model, also one that failed. Raises ApiError: 404, and 503 if it cannot be loaded."""

    @abstractmethod
    async def unload(self, name: str) -> ServedModelEntry:
        """Let its requests end, and unload it. A request that names it later loads it again. Raises ApiError (404)."""

    @abstractmethod
    def set_alias(self, alias: str, model: str | None) -> ServedModelEntry | None:
        """Give a model another name; None takes it away. Raises ApiError (404, 400)."""

    @abstractmethod
    async def reports(self) -> Mapping[str, ServerReport]:
        """The data of /metrics, of each model that is loaded."""


class Server(Protocol):
    """The web's interface. Questions concern the whole server; they raise ApiError if they get no answer."""

    @property
    def settings(self) -> ServeSettings: ...

    @property
    def gateway(self) -> Gateway | Gateways:
        """The requests of this process."""
        ...

    @property
    def served(self) -> ModelEngine | Models:
        """The model, or all of them."""
        ...

    @property
    def ready(self) -> Ready | None:
        """As that of a model; of several models the first one's."""
        ...

    @property
    def loaded(self) -> trio.Event:
        """Set when model and tokenizer are loaded for the first time."""
        ...

    @property
    def draining(self) -> bool:
        """Whether new requests are refused while accepted ones continue."""
        ...

    def begin_drain(self) -> None: ...

    async def health(self) -> Health:
        """Whether a request sent now would be computed, judged by progress."""
        ...

    async def report(self) -> ServerReport:
        """The data of /metrics and the ledger."""
        ...

    async def recordings(self) -> Mapping[str, FlightRecording]:
        """What the flight recorders have, by model."""
        ...

    async def about(self) -> AboutEngine | None:
        """A dashboard's first frame, sent again for each new worker; None before the first worker."""
        ...

    async def view(self) -> View:
        """A dashboard's view."""
        ...

    async def explain(self, wanted: str, tenant: str) -> Explanation | None:
        """As that of a model."""
        ...

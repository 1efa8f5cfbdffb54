"""What a dialect makes of a request's body: the engine's request, and the form that its answer takes.

A dialect is a function from a body to an `Asked`. All else is the same for all of them: places, streams, keep-alives,
explanations, what a client's leaving does (generation.py).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from ...protocol.adapters import Adapter
from ...protocol.errors import ApiError
from ...protocol.events import Finished, StreamEvent
from ...protocol.explanation import Explanation
from ...protocol.requests import Generate
from ...protocol.settings import LimitSettings
from ...protocol.steps import Ready
from ..exchange import STREAM_FIELDS, Field


class ServedModel(NamedTuple):
    """The model and the limits that requests are checked against."""

    model: str
    ready: Ready
    limits: LimitSettings
    adapters: Mapping[str, Adapter] = MappingProxyType({})  # LoRA adapters by name


class Origin(NamedTuple):
    """Where a request comes from, and its ids."""

    id: str
    tenant: str
    arrival_time: float
    name: str = ""
    traceparent: str = ""
    fallbacks: tuple[str, ...] = ()  # models to use instead of one that is not served, the first that is
    deadline: float | None = None


class Whole(ABC):
    """Collects a request's events into one body. Its size is bounded by the request's tokens."""

    __slots__ = ()

    @abstractmethod
    def extend(self, events: Iterable[StreamEvent]) -> None: ...

    @abstractmethod
    def body(self, finished: Finished) -> msgspec.Struct: ...

    def worded(self, error: ApiError) -> ApiError:
        """The engine's error, naming the parameters as this dialect does."""
        return error


class Pieces(ABC):
    """Encodes the events of one stream, in order. With the last event it writes the stream's only end.

    Here is what all streams of server-sent events have in common: comments, which their readers skip.
    """

    __slots__ = ()

    fields: tuple[Field, ...] = STREAM_FIELDS  # of the answer's head

    @property
    def keep_alive(self) -> bytes:
        """What is sent while nothing else is, so that proxies see traffic."""
        return b": keep-alive\n\n"

    @abstractmethod
    def encode(self, events: Sequence[StreamEvent]) -> bytes: ...

    @abstractmethod
    def text(self, index: int, text: str, tokens: int) -> bytes:
        """The bytes for a `Token` with these fields alone: nearly every event, so this should be fast."""

    @abstractmethod
    def failed(self, error: ApiError) -> bytes:
        """The end of a failed stream."""

    def explained(self, explanation: Explanation) -> bytes:
        return b": explain " + msgspec.json.encode(explanation) + b"\n\n"


class Asked(NamedTuple):
    request: Generate
    answer: Whole | Pieces  # what the client asked for
    waits: float | None = None  # of a stream: seconds without its client before it is cancelled; None: it is at once


Read = Callable[[ServedModel, Origin, bytes], Asked]  # of a body; raises ApiError (400, 404)

"""Which model a body names: of several models, the body is read as a request to the one whose name stands in it.

With one model a body is read once, and names are compared where the request is made (openai/request.py). With several
the name is read first; then the model is found, perhaps loaded, and the body is read with its vocabulary and limits.
"""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

import msgspec
import trio

from ...actors.observe.server import Absent, ListedModel, Models
from ..errors import unready_error
from ..exchange import FALLBACK_HEADER, Headers
from ..large_json import decode_aside
from .asked import Origin, ServedModel

if TYPE_CHECKING:
    from ...actors.front_actors import FrontActors
    from ...actors.observe.server import ModelEngine, Server

T = TypeVar("T")
Json = TypeVar("Json", bytes, str, msgspec.Raw)
Json_co = TypeVar("Json_co", covariant=True)


class _Named(msgspec.Struct):
    """The part of any body that says which model is meant."""

    model: str | None = None
    name: str | None = None  # the same, in old bodies of Ollama's


_NAMED: Final = msgspec.json.Decoder(_Named)


class ReadBody(Protocol[Json_co]):
    """Reads a request's body, or a message: what `decode` makes of it. Large ones are decoded aside."""

    async def __call__(self, decode: Callable[[Json_co], T], /) -> T: ...


def message_reader(message: Json, tenant: str) -> ReadBody[Json]:
    """The reader of a body that is here already."""

    async def read(decode: Callable[[Json], T]) -> T:
        return await decode_aside(message, decode, tenant)

    return read


@asynccontextmanager
async def reading(
    server: "Server",
    body: ReadBody[Json],
    read: Callable[[ServedModel, Origin, Json], T],
    asks: Origin,
    *,
    absent: Absent = "load",
) -> AsyncGenerator[tuple["ModelEngine", ServedModel, T]]:
    """The model that a body names, and what `read` makes of the body. The request is to be submitted in the block.

    Raises ApiError: 404 for the name, 503 for a model that cannot be used now, and what `read` raises.
    """
    if not isinstance(server.served, Models):
        served = served_model(server.served)
        yield server.served, served, await body(partial(read, served, asks))
        return
    data, name = await body(_with_name)
    async with using(server, name, asks, absent=absent) as (engine, served):
        yield engine, served, await decode_aside(data, partial(read, served, asks), asks.tenant)


@asynccontextmanager
async def using(
    server: "Server", name: str | None = None, asks: Origin | None = None, *, absent: Absent = "load"
) -> AsyncGenerator[tuple["ModelEngine", ServedModel]]:
    """The model of this name, of several; else the only one. As `reading`, for a name that is known."""
    if not isinstance(server.served, Models):
        yield server.served, served_model(server.served)
        return
    await _refuse_while_starting(server)
    fallbacks, deadline = (asks.fallbacks, asks.deadline) if asks is not None else ((), None)
    async with server.served.use(name, fallbacks, absent=absent, deadline=deadline) as (called, engine):
        yield engine, served_model(engine, called)


def _with_name(body: Json) -> tuple[Json, str | None]:
    return body, name_in(body)


def name_in(body: bytes | str | msgspec.Raw) -> str | None:
    """The model that a body names."""
    try:
        named = _NAMED.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None  # whatever is wrong, the body's own reader says it
    return either_name(named.model, named.name)


def either_name(model: str | None, name: str | None) -> str | None:
    """An empty one is a name too, unless the other is there: old clients of Ollama's send both."""
    return model or (model if name is None else name)


def served_model(engine: "ModelEngine | FrontActors", name: str | None = None) -> ServedModel:
    """What requests are checked against; raises ApiError (503) until the model is loaded. `name`: an alias."""
    ready = engine.ready
    if ready is None:
        raise unready_error(engine.gateway.worker.health(trio.current_time()))
    return ServedModel(name or engine.model_name, ready, engine.settings.limits, engine.adapters)


async def unloaded_model(server: "Server", name: str | None, asks: Origin) -> ListedModel | None:
    """The model of this name, of several, if it is not loaded. Raises ApiError: 404, and 503 as `listed_models`."""
    if not isinstance(server.served, Models):
        return None
    await _refuse_while_starting(server)
    found = server.served.find(name, asks.fallbacks)
    return None if found.loaded else found


async def listed_models(server: "Server") -> Sequence[ListedModel]:
    """The models, then their aliases. Raises ApiError (503) until the server has started."""
    if isinstance(server.served, Models):
        await _refuse_while_starting(server)
        return server.served.listed()
    model, name = served_model(server.served), server.served.model_name
    length = model.ready.context_length
    return [ListedModel(name, name, server.served.created, length, True, model.ready, model.adapters)]


async def _refuse_while_starting(server: "Server") -> None:
    if isinstance(server.served, Models) and not server.loaded.is_set():
        raise unready_error(await server.health())


def fallback_models(headers: Headers) -> tuple[str, ...]:
    """The names in the request's or the handshake's `X-Model-Fallback`."""
    names = headers.get(FALLBACK_HEADER, "").split(",")
    return tuple(name for name in map(str.strip, names) if name)

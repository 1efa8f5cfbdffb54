"""Large bodies of JSON: what decoding them may cost, and where it is done.

A call of the decoder holds the interpreter's lock to its end, in whatever thread: a body of 4 MiB can hold two million
numbers or a million lists, and would stop all streams for half a second. So the values in a large body are counted
first. What is below the bounds takes at most 25 ms at once, and the rest of the work is done in a thread, for one body
at a time. Tenants take turns, so that many bodies of one do not delay those of the others.
"""

from collections.abc import Callable
from typing import Final, TypeVar
from weakref import WeakValueDictionary

import trio
from msgspec import Raw

from ..protocol.errors import ApiError

T = TypeVar("T")
Json = TypeVar("Json", bytes, str, Raw)

LARGE: Final = 64 * 1024  # bytes: up to here a body is decoded at once, in 2 ms at most
MAX_CONTAINERS: Final = 2**15  # lists and objects: 4,096 messages with their parts and tool calls fit
MAX_STRINGS: Final = 2**17  # the names of fields count as well
MAX_NUMBERS: Final = 2**19  # token ids, and other values

_ONE_AT_A_TIME: Final = trio.CapacityLimiter(1)  # several together would take the lock from the event loop in turns
_turns: Final = WeakValueDictionary[str, trio.Lock]()  # by tenant: one body of each waits for the limiter


async def decode_aside(body: Json, decode: Callable[[Json], T], tenant: str) -> T:
    """What `decode` makes of a body: a large one is decoded in a thread, after a count of its values (413)."""
    size = len(body) if isinstance(body, str) else len(memoryview(body))
    if size <= LARGE:
        return decode(body)

    def checked() -> T:
        check_values(body.encode() if isinstance(body, str) else bytes(body))
        return decode(body)

    async with _turns.setdefault(tenant, trio.Lock()):
        result = await trio.to_thread.run_sync(checked, limiter=_ONE_AT_A_TIME)
    await trio.lowlevel.checkpoint_if_cancelled()  # a thread is not cancelled with its client
    return result


def check_values(data: bytes) -> None:
    """Raise ApiError (413) if JSON holds too many values. Text between quotes does not count, however long."""
    if _few(data) and data.count(b'"') <= 2 * MAX_STRINGS:
        return
    # Without escapes every second piece between quotes is a string.
    pieces = data.replace(rb"\\", b"").replace(rb"\"", b"").split(b'"', 2 * MAX_STRINGS)
    if len(pieces) > 2 * MAX_STRINGS:
        raise _too_many(f"{MAX_STRINGS} strings and names of fields")
    if not _few(b"".join(pieces[::2])):
        raise _too_many(f"{MAX_CONTAINERS} lists and objects, or {MAX_NUMBERS} values")


def _few(data: bytes) -> bool:
    return data.count(b"[") + data.count(b"{") <= MAX_CONTAINERS and data.count(b",") < MAX_NUMBERS


def _too_many(what: str) -> ApiError:
    message = f"The body holds more than {what}; send less in one request."
    return ApiError("content_too_large", message)

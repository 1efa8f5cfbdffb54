"""Runs every check against a server, one after the other: a failing check stops no other."""

from collections.abc import AsyncGenerator, Iterable
from typing import Any, Final

import trio

from ..client.chunk import listed_models
from ..client.client import HttpClient
from ..client.dial import read_url
from ..client.ending import Fault
from . import chat, completions, dialects, refusals, streams, structured, tools
from .check import Check, CheckGroup, CheckResult, Fails, NotOffered, title
from .server import ExaminedServer

GROUPS: Final = (
    chat.GROUP,
    streams.GROUP,
    completions.GROUP,
    refusals.GROUP,
    structured.GROUP,
    tools.GROUP,
    dialects.GROUP,
)


async def first_model(url: str, key: str | None) -> str:
    """The first model that the server lists. Raises Fault, and msgspec.MsgspecError."""
    client = HttpClient(read_url(url, path=""), most_idle=0)
    names = listed_models(await client.fetch("GET", "/v1/models", key=key))
    if not names:
        raise Fault("malformed", "the server lists no model")
    return names[0]


async def conform(
    server: ExaminedServer, groups: Iterable[CheckGroup] = GROUPS, *, seconds: float
) -> AsyncGenerator[CheckResult, None]:
    """The result of each check, as it comes. A check has `seconds`."""
    for group in groups:
        for check in group.checks:
            yield await _result(server, group, check, seconds)


async def _result(server: ExaminedServer, group: CheckGroup, check: Check, seconds: float) -> CheckResult:
    fields: dict[str, Any] = {"group": group.name, "check": title(check)}  # Any: of CheckResult
    try:
        with trio.fail_after(seconds):
            await check(server)
    except NotOffered as refusal:
        return CheckResult(**fields, verdict="not offered", detail=str(refusal))
    except (Fails, Fault) as failure:
        return CheckResult(**fields, verdict="fails", detail=str(failure))
    except trio.TooSlowError:
        return CheckResult(**fields, verdict="fails", detail=f"no answer within {seconds:g} s")
    except LookupError as missing:  # from here on, as in a client that reads the answer
        return CheckResult(**fields, verdict="fails", detail=f"the answer lacks {missing}")
    except ValueError as error:
        return CheckResult(**fields, verdict="fails", detail=f"the answer cannot be read: {error}")
    except (TypeError, AttributeError) as error:
        return CheckResult(**fields, verdict="fails", detail=f"a field of the answer has another type: {error}")
    return CheckResult(**fields, verdict="ok")

"""GET /v1/usage: what the requests of an API key used; with an operator key, those of all keys.

Every web process reads the same table, so it does not matter which one is asked, or which one had the request.
"""

import time
from typing import Final, cast, get_args

import msgspec
from quart_trio.wrappers import TrioResponse as Response

from ...actors.usage import hours, table
from ...actors.usage.table import UsageQuery
from ...actors.usage.usage import DAY_SECONDS, days_kept, usage_database
from ...protocol.errors import ApiError
from ...protocol.usage import GroupBy, UsageList
from ..asgi import Application, current_exchange, quart_response
from ..auth import Keys
from ..exchange import json_content
from .paging import Query

PATH: Final = "/v1/usage"
PAGE: Final = 100
MOST: Final = 1000
_LAST: Final = 9_999_999_999  # Unix time
_NAMES: Final = ("group_by", "start", "end", "limit", "after")
_NAMES_OF_OPERATORS: Final = (*_NAMES, "key_digest")
_GROUPS: Final = (*get_args(GroupBy), "none")


def register(app: Application, operators: Keys | None) -> None:
    """`operators`: None if no operator keys are configured; every API key then sees its own usage alone."""
    days = days_kept(app.engine.settings)
    database = usage_database(app.engine.settings)

    @app.get(PATH)
    async def usage() -> Response:
        exchange, now = current_exchange(), int(time.time())
        everybody = operators is not None and operators.include(exchange.headers)
        query = Query(_NAMES_OF_OPERATORS if everybody else _NAMES)
        group_by = query.word("group_by", _GROUPS) or "day"
        limit, after = query.limit(PAGE, MOST), query.text("after")
        start, end = query.number("start", 0, _LAST), query.number("end", 0, _LAST)
        if after is not None and group_by != "none":
            raise ApiError("invalid_value", "after: only single records have pages (group_by=none).", param="after")
        if not days:
            raise ApiError("not_found", "This server keeps no usage records; start it with --data or --usage-days.")
        wanted = UsageQuery(
            query.text("key_digest") if everybody else exchange.tenant,
            max(start or 0, now - days * DAY_SECONDS),  # older ones go when others are written
            _LAST if end is None else end,
        )
        if not database.exists:  # asking makes nothing
            found = UsageList(data=[], has_more=False)
        elif group_by == "none":
            found = await database.read(table.records, wanted, limit, after)
        else:
            found = await database.read(hours.totals, *wanted, cast("GroupBy", group_by), limit)
        return quart_response(json_content(msgspec.json.encode(found)))

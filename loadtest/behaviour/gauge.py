"""How many requests the engine is working on, according to the server itself, if it reports that."""

import json
import re
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import trio

from ..client.client import HttpClient
from ..client.ending import Fault

PAGE_SECONDS: Final = 10.0  # limit for fetching a page
# Each is the sum over all label sets of these names. The ledger's `requests` counts unfinished ones.
_METRICS: Final = (
    ("triolet_requests_running", "triolet_requests_parked"),
    ("vllm:num_requests_running", "vllm:num_requests_waiting"),
    ("sglang:num_running_reqs",),
    ("llamacpp:requests_processing", "llamacpp:requests_deferred"),
)


class Gauge:
    """A number that the server reports, and where."""

    def __init__(self, where: str, read: Callable[[], Awaitable[float]]) -> None:
        self.where = where
        self.read = read


async def find_gauge(client: HttpClient, key: str | None) -> Gauge | None:
    """Triolet's ledger, or a metric of the names that servers use; None if there is neither."""
    candidates = [Gauge("/internal/ledger", partial(_ledger, client, key))]
    candidates += [Gauge(f"/metrics {names[0]}", partial(_metric, client, key, names)) for names in _METRICS]
    for gauge in candidates:
        try:
            await gauge.read()
        except (Fault, ValueError, KeyError, TypeError):
            continue
        return gauge
    return None


async def get_page(client: HttpClient, path: str, key: str | None) -> bytes:
    """A page of the server. Raises Fault if the status is not success, or it takes too long."""
    try:
        with trio.fail_after(PAGE_SECONDS):
            return await client.fetch("GET", path, key=key)
    except trio.TooSlowError as error:
        raise Fault("timeout", f"{path} was not answered within {PAGE_SECONDS:g} s") from error


async def _ledger(client: HttpClient, key: str | None) -> float:
    """Unfinished requests; if there are none, whether a computation still holds KV blocks."""
    ledger = json.loads(await get_page(client, "/internal/ledger", key))
    return float(ledger["requests"] or ledger["kv_blocks"]["owned"] > 0)


async def _metric(client: HttpClient, key: str | None, names: tuple[str, ...]) -> float:
    text = (await get_page(client, "/metrics", key)).decode()
    values: list[str] = []
    for name in names:
        values += re.findall(rf"^{re.escape(name)}(?:\{{[^}}]*\}})? (\S+)$", text, re.M)
    if not values:
        raise KeyError(names[0])
    return sum(map(float, values))

"""How many requests the engine is working on, asked of the server itself where it can tell."""

import json
import re
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Final

import trio

# Each is the sum over all label sets of these names. `requests` of the ledger counts what has not ended.
_METRICS: Final = (
    ("triolet_requests_running", "triolet_requests_parked"),
    ("vllm:num_requests_running", "vllm:num_requests_waiting"),
    ("sglang:num_running_reqs",),
    ("llamacpp:requests_processing", "llamacpp:requests_deferred"),
)


class Gauge:
    """A number that the server shows, and where."""

    def __init__(self, where: str, read: Callable[[], float]) -> None:
        self.where = where
        self._read = read

    async def read(self) -> float:
        return await trio.to_thread.run_sync(self._read)


async def find_gauge(url: str, key: str | None) -> Gauge | None:
    """Triolet's ledger, or a metric of the names that servers use; None if there is neither."""
    candidates = [Gauge("/internal/ledger", lambda: _ledger(url, key))]
    candidates += [
        Gauge(f"/metrics {names[0]}", lambda names=names: _metric(url, key, names))  # type: ignore[misc]  # the default is the loop's value
        for names in _METRICS
    ]
    for gauge in candidates:
        try:
            await gauge.read()
        except (OSError, ValueError, KeyError, TypeError):
            continue
        return gauge
    return None


def get(url: str, key: str | None) -> bytes:
    """A page of the server; raises OSError for any status but success."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=10) as response:
            body: bytes = response.read()
            return body
    except urllib.error.HTTPError as error:
        error.close()  # it is the response, and holds its socket
        raise


def _ledger(url: str, key: str | None) -> float:
    """Requests that have not ended; when there are none, whether KV blocks are still held for something computed."""
    ledger = json.loads(get(f"{url}/internal/ledger", key))
    return float(ledger["requests"] or ledger["kv_blocks"]["owned"] > 0)


def _metric(url: str, key: str | None, names: tuple[str, ...]) -> float:
    text = get(f"{url}/metrics", key).decode()
    values: list[str] = []
    for name in names:
        values += re.findall(rf"^{re.escape(name)}(?:\{{[^}}]*\}})? (\S+)$", text, re.M)
    if not values:
        raise KeyError(names[0])
    return sum(map(float, values))

"""The figures by name, each with a floor and a target where there is one.

Absolute rates depend on the machine. Ratios to the bare trio server of the same run describe the software.
"""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Final, cast

from msgspec import Struct
from msgspec.structs import replace

from .effort import Effort
from .idle import Idle
from .memory import StreamMemory
from .paced import Paced
from .rates import Rate
from .setup_cost import SetUp
from .stalled import Stalled

KIB: Final = 1024
Results = Mapping[str, Struct]  # one round, by part


class Figure(Struct, frozen=True, kw_only=True):
    """One measured number. `floor` and `target` are upper bounds if smaller is better; None: no requirement."""

    key: str
    label: str
    value: float
    unit: str
    floor: float | None = None
    target: float | None = None
    larger_is_better: bool = False
    rounds: tuple[float, ...] = ()  # in order; `value` is their median

    def meets(self, bound: float | None) -> bool | None:
        if bound is None:
            return None
        return self.value >= bound if self.larger_is_better else self.value <= bound


def _ratio(key: str, label: str, value: float, floor: float, target: float) -> Figure:
    return Figure(key=key, label=label, value=value, unit="×", floor=floor, target=target, larger_is_better=True)


def _rate(key: str, label: str, value: float, unit: str) -> Figure:
    return Figure(key=key, label=label, value=value, unit=unit, larger_is_better=True)


def figures(rounds: Sequence[Results]) -> list[Figure]:
    """Medians over the rounds of the parts that ran. A ratio compares two values of the same round."""
    found: dict[str, list[Figure]] = {}
    for results in rounds:
        for figure in _of_a_round(results):
            found.setdefault(figure.key, []).append(figure)
    values = {key: tuple(figure.value for figure in same) for key, same in found.items()}
    return [replace(found[key][0], value=median(several), rounds=several) for key, several in values.items()]


def _of_a_round(results: Results) -> list[Figure]:
    found: list[Figure] = []
    raw, sse = _rate_of(results, "raw"), _rate_of(results, "sse")
    coalesced, socket, fronts = (_rate_of(results, part) for part in ("coalesced", "websocket", "two-fronts"))
    if raw is not None:
        found.append(_rate("raw_trio_events_s", "bare trio stream, 64 sockets", raw.events_s, "events/s"))
    if sse is not None:
        found.append(_rate("sse_events_s", "SSE, 64 streams, each event its own write", sse.events_s, "events/s"))
        if raw is not None:
            found.append(_ratio("sse_over_raw", "… against the bare stream", sse.events_s / raw.events_s, 1.1, 2.0))
            found.append(
                _ratio(
                    "sse_over_raw_by_cpu",
                    "… by the server's CPU time",
                    raw.server_us_per_event / sse.server_us_per_event,
                    1.0,
                    2.0,
                )
            )
    if coalesced is not None:
        found.append(_rate("sse_tokens_s_coalesced", "SSE, 16 tokens at once", coalesced.tokens_s, "tokens/s"))
        if raw is not None:
            ratio = coalesced.tokens_s / raw.events_s
            found.append(_ratio("coalesced_over_raw", "… against bare events", ratio, 10.0, 16.0))
    if socket is not None:
        found.append(_rate("ws_messages_s", "WebSocket, 64 sockets", socket.events_s, "messages/s"))
        if raw is not None:
            found.append(_ratio("ws_over_raw", "… against bare events", socket.events_s / raw.events_s, 1.05, 2.0))
    if fronts is not None and sse is not None:
        ratio = fronts.server_us_per_event / sse.server_us_per_event
        found.append(_cost("two_fronts_over_one", "CPU per event, two web processes to one", ratio, "×", 1.2, 1.05))
    return found + _costs(results)


def _costs(results: Results) -> list[Figure]:
    found: list[Figure] = []
    for part, result in results.items():
        match result:
            case Paced() if part == "late":
                found.append(
                    _cost(
                        "late_p99_intervals",
                        f"{result.streams} × 30 tok/s: p99 gap",
                        result.gap_p99_intervals,
                        "intervals",
                        1.5,
                        1.1,
                    )
                )
            case Paced(streams=streams, cpu_ms_per_1000_tokens=cpu):
                label = f"server CPU, {streams} × 30 tok/s"
                found.append(_cost("cpu_ms_per_1000_tokens", label, cpu, "ms/1,000 tokens", 25, 10))
            case SetUp(request_ms=cost):
                found.append(_cost("request_setup_ms", "server CPU per request", cost, "ms", 0.3, 0.25))
            case Idle(cpu_percent=cpu, wakeups_s=wakeups):
                found.append(_cost("idle_cpu_percent", "idle server", cpu, "% of a core", 0.5, 0.5))
                found.append(_cost("idle_wakeups_s", "idle server", wakeups, "wake-ups/s", 20, 20))
            case StreamMemory(wire=wire, streams=streams, bytes_per_stream=held):
                label = f"memory of an open stream, {streams} over {wire}"
                found.append(_cost(f"stream_kib_{wire}", label, held / KIB, "KiB", 48, 24))
            case Stalled(readers=readers, bytes_each=held):
                label = f"memory of each of {readers} readers that take no more"
                found.append(_cost("stalled_kib", label, held / KIB, "KiB", 64, 64))
            case _:
                pass
    return found


def _cost(key: str, label: str, value: float, unit: str, floor: float, target: float) -> Figure:
    return Figure(key=key, label=label, value=value, unit=unit, floor=floor, target=target)


def _rate_of(results: Results, part: str) -> Rate | None:
    return cast("Rate | None", results.get(part))


def warnings(rounds: Sequence[Results]) -> list[str]:
    """Reasons to distrust a figure: another process on the server's core, or a client at its limit."""
    said: list[str] = []
    for number, results in enumerate(rounds, 1):
        for part, result in results.items():
            effort: Effort | None = getattr(result, "effort", None)
            if effort is None:
                continue
            where = f"{part}, round {number}" if len(rounds) > 1 else part
            if effort.server_waited_share > 0.05:
                share = f"{effort.server_waited_share:.0%}"
                said.append(f"{where}: the server waited {share} of the time for its core; rates and gaps are too bad")
            if effort.limit in ("client", "scripted worker"):
                said.append(f"{where}: the {effort.limit} was the limit, not the server")
    return said

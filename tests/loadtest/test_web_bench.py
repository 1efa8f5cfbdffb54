"""`triolet bench web`: a short run of the real thing, and that its client finds every way a stream can be wrong."""

import json
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from triolet.cli.options import BUNDLED_MODEL
from triolet.loadtest.process import CpuTime
from triolet.loadtest.web.bench import PARTS
from triolet.loadtest.web.check_sse import Arrivals, StreamError, check_stream
from triolet.loadtest.web.check_websocket import check_socket
from triolet.loadtest.web.effort import Effort, Moment, effort_between
from triolet.loadtest.web.idle import Idle
from triolet.loadtest.web.paced import gaps_of
from triolet.loadtest.web.parts import NAMES
from triolet.loadtest.web.rates import Rate
from triolet.loadtest.web.script import Script
from triolet.loadtest.web.summary import Figure, figures

TRIOLET = str(Path(sys.executable).with_name("triolet"))
KEY, TOKENS = 3200, 40


@pytest.fixture(scope="module")
def script() -> Script:
    return Script(BUNDLED_MODEL)


def event(text: str, reason: str | None = None) -> bytes:
    choice = {"index": 0, "text": text, "finish_reason": reason}
    body = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "m", "choices": [choice]}
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def answer(writes: list[bytes]) -> bytes:
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(write), write) for write in [*writes, b""])
    return b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + chunks


def good_writes(script: Script) -> list[bytes]:
    pieces = [script.text(KEY, count) for count in range(TOKENS + 1)]
    texts = [event(later[len(earlier) :]) for earlier, later in pairwise(pieces)]
    return [*texts, event("", "length"), b"data: [DONE]\n\n"]


def test_every_part_that_help_names_is_there() -> None:
    assert tuple(PARTS) == NAMES


def test_a_right_stream_is_dated_token_by_token(script: Script) -> None:
    data = answer(good_writes(script))
    arrivals = check_stream(data, script, KEY, TOKENS)
    assert arrivals.tokens[:TOKENS] == list(range(1, TOKENS + 1))
    assert arrivals.at(arrivals.offsets[9] - 1) == (9, 9)
    assert arrivals.at(arrivals.offsets[9]) == (10, 10)
    assert arrivals.at(len(data)) == (TOKENS, TOKENS)


def test_tokens_that_came_together_are_counted_by_their_text(script: Script) -> None:
    half, whole = script.text(KEY, 25), script.text(KEY, TOKENS)
    data = answer([event(half), event(whole[len(half) :]), event("", "length") + b"data: [DONE]\n\n"])
    arrivals = check_stream(data, script, KEY, TOKENS)
    assert (arrivals.events, arrivals.tokens) == ([1, 2, 2], [25, TOKENS, TOKENS])


def lose(writes: list[bytes]) -> list[bytes]:
    return writes[:7] + writes[8:]


def double(writes: list[bytes]) -> list[bytes]:
    return [*writes[:7], writes[6], *writes[7:]]


def swap(writes: list[bytes]) -> list[bytes]:
    return [*writes[:7], writes[8], writes[7], *writes[9:]]


def end_twice(writes: list[bytes]) -> list[bytes]:
    return [*writes, writes[-1]]


def leave_out_done(writes: list[bytes]) -> list[bytes]:
    return writes[:-1]


def finish_twice(writes: list[bytes]) -> list[bytes]:
    return [*writes[:-1], *writes[-2:]]


def another_id(writes: list[bytes]) -> list[bytes]:
    return [writes[0].replace(b"cmpl-1", b"cmpl-2"), *writes[1:]]


@pytest.mark.parametrize("spoil", [lose, double, swap, end_twice, leave_out_done, finish_twice, another_id])
def test_a_wrong_stream_is_found(script: Script, spoil: Callable[[list[bytes]], list[bytes]]) -> None:
    with pytest.raises(StreamError):
        check_stream(answer(spoil(good_writes(script))), script, KEY, TOKENS)


def test_a_stream_that_breaks_off_is_found(script: Script) -> None:
    with pytest.raises(StreamError):
        check_stream(answer(good_writes(script))[:-5], script, KEY, TOKENS)


def frames(script: Script) -> list[dict[str, object]]:
    pieces = [script.text(KEY, count) for count in range(TOKENS + 1)]
    token = {"type": "token", "id": "s", "index": 0, "kind": "text", "tokens": 1}
    texts = [later[len(earlier) :] for earlier, later in pairwise(pieces)]
    usage: dict[str, object] = {"prompt_tokens": 8, "completion_tokens": TOKENS, "total_tokens": 8 + TOKENS}
    usage |= {"prompt_tokens_details": {"cached_tokens": 0}, "completion_tokens_details": {"reasoning_tokens": 0}}
    finished: dict[str, object] = {"type": "finished", "id": "s", "reason": "length", "choices": [], "usage": usage}
    timing = {"queued": 0.0, "first_token": 0.0, "total": 0.0}
    ordered: list[dict[str, object]] = [
        {"type": "started", "id": "s", "model": "m", "request_id": "r"},
        *({**token, "text": text} for text in texts),
        {**finished, "timing": timing},
    ]
    return [{**frame, "seq": seq} for seq, frame in enumerate(ordered)]


def on_the_wire(sent: list[dict[str, object]]) -> bytes:
    data = b"HTTP/1.1 101 Switching Protocols\r\n\r\n"
    for frame in sent:
        payload = json.dumps(frame).encode()
        size = bytes([len(payload)]) if len(payload) < 126 else b"\x7e" + len(payload).to_bytes(2, "big")
        data += b"\x81" + size + payload
    return data


def test_a_socket_is_checked_frame_by_frame(script: Script) -> None:
    good = frames(script)
    assert check_socket(on_the_wire(good), script, KEY, TOKENS).events[-1] == TOKENS
    for bad in ([*good[:5], *good[6:]], good[:-1], [*good[:5], {**good[5], "text": "?"}, *good[6:]]):
        with pytest.raises(StreamError):
            check_socket(on_the_wire(bad), script, KEY, TOKENS)


def test_a_late_token_is_a_gap_and_the_ones_it_held_up_are_none() -> None:
    arrivals = Arrivals([10, 20, 30, 40], [1, 2, 3, 4], [1, 2, 3, 4])
    reads = [(1.0, 10), (2.0, 20), (5.0, 40)]
    assert gaps_of(reads, arrivals, since=0.0, until=9.0) == [1.0, 3.0, 0.0]


@pytest.mark.parametrize(
    ("server", "waited", "client", "worker", "limit"),
    [
        (0.98, 0.01, 0.3, 0.1, "server"),
        (0.40, 0.58, 0.3, 0.1, "server, beside other processes on its core"),
        (0.50, 0.01, 0.8, 0.15, "client"),
        (0.50, 0.01, 0.2, 0.75, "scripted worker"),
        (0.20, 0.01, 0.1, 0.05, "none: waiting for each other or for the clock"),
    ],
)
def test_who_was_at_the_end_of_its_core_is_said(
    server: float, waited: float, client: float, worker: float, limit: str
) -> None:
    first = Moment(0.0, 0.0, CpuTime(0.0, 0.0, 0.0), ())
    last = Moment(2.0, 2 * client, CpuTime(2 * server, 2 * worker, 2 * waited), ())
    assert effort_between(first, last).limit == limit


def test_bounds_hold_in_their_direction() -> None:
    cost = Figure(key="cost", label="", value=1.1, unit="ms", floor=1.2, target=1.05)
    rate = Figure(key="rate", label="", value=1.1, unit="×", floor=1.0, target=2.0, larger_is_better=True)
    assert [cost.meets(cost.floor), cost.meets(cost.target)] == [True, False]
    assert [rate.meets(rate.floor), rate.meets(rate.target)] == [True, False]


def test_a_ratio_is_each_round_s_own_and_their_median_is_told() -> None:
    """A machine that turns fast or slow between two rounds says nothing of the software."""

    def rate(events_s: float) -> Rate:
        effort = Effort(
            seconds=1, server_share=1, server_waited_share=0, client_share=0, worker_share=0, limit="server"
        )
        return Rate(
            events_s=events_s,
            tokens_s=events_s,
            events=1,
            server_us_per_event=1e6 / events_s,
            tokens_per_event=1,
            events_per_read=1,
            events_per_write=1,
            effort=effort,
        )

    speeds = [(100.0, 110.0), (200.0, 210.0), (50.0, 60.0)]
    rounds: list[dict[str, Struct]] = [{"raw": rate(raw), "sse": rate(sse)} for raw, sse in speeds]
    rounds[0]["idle"] = Idle(cpu_percent=0.1, wakeups_s=6, seconds=1)
    found = {figure.key: figure for figure in figures(rounds)}
    assert found["raw_trio_events_s"].value == 100
    assert found["sse_over_raw"].rounds == pytest.approx((1.1, 1.05, 1.2))
    assert found["sse_over_raw"].value == pytest.approx(1.1)
    assert found["idle_cpu_percent"].rounds == (0.1,)


def measured(*parts: str, rounds: int) -> dict[str, Any]:  # Any: JSON
    command = [TRIOLET, "bench", "web", "--json", "--seconds", "0.2", "--streams", "16", "--rounds", str(rounds)]
    command += [word for part in parts for word in ("--only", part)]
    result: dict[str, Any] = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    return result


def test_the_benchmark_runs_and_every_stream_is_right() -> None:
    parts = ("raw", "sse", "coalesced", "websocket", "setup", "idle", "two-fronts")
    result = measured(*parts, rounds=1)
    (only,) = result["rounds"]
    assert set(only) == set(parts)
    for key in ("raw_trio_events_s", "sse_events_s", "sse_tokens_s_coalesced", "ws_messages_s", "request_setup_ms",
                "two_fronts_over_one"):  # fmt: skip
        assert result[key] > 0
    assert {"idle_cpu_percent", "idle_wakeups_s"} <= set(result)
    # Of a front that was starved the next event brings two tokens, so this is no exact number.
    assert only["sse"]["tokens_per_event"] < only["coalesced"]["tokens_per_event"] / 4


def test_only_rates_are_measured_again_in_a_second_round() -> None:
    result = measured("raw", "setup", rounds=2)
    assert [set(parts) for parts in result["rounds"]] == [{"raw", "setup"}, {"raw"}]
    assert {figure["key"]: len(figure["rounds"]) for figure in result["figures"]} == {
        "raw_trio_events_s": 2,
        "request_setup_ms": 1,
    }

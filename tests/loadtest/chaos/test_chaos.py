"""A short chaos run against a real server, and that its checks can fail."""

import pytest
from msgspec import json

from triolet.loadtest.chaos.__main__ import run
from triolet.loadtest.chaos.page import page
from triolet.loadtest.chaos.run import ChaosResult, Plan, Trouble
from triolet.loadtest.machine import machine, versions

LEDGER = {"requests": 0, "kv_blocks": {"owned": 0}, "tasks": 30, "fds": 12, "children": 1}


def test_streams_go_through_a_kill_a_crash_and_a_hang() -> None:
    result = run(Plan(streams=6, tokens=50, each=1, leavers=2))
    assert result.faults() == []
    assert {trouble.kind for trouble in result.troubles} == {"kill", "crash", "hang"}
    assert result.complete >= 6
    assert result.left
    report = result.report(machine(), versions())
    assert json.decode(json.encode(report))["streams"]["changed"] == 0
    assert "nothing lost, nothing changed, nothing left" in page(result)
    assert page(result).count("<td>hang</td>") == 1


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"changed": 1}, "answers were changed"),
        ({"lost": ["reset"]}, "streams were lost"),
        ({"ends": 1}, "not one end"),
        ({"ledger": LEDGER | {"requests": 1}}, "requests are left"),
        ({"ledger": LEDGER | {"kv_blocks": {"owned": 2}}}, "blocks are owned"),
        ({"ledger": LEDGER | {"tasks": 31}}, "tasks are left"),
        ({"ledger": LEDGER | {"fds": 13}}, "fds are left"),
        ({"troubles": [Trouble(kind="hang", at=1.0, token=2.0)]}, "health never told"),
        ({"troubles": [Trouble(kind="hang", at=1.0, token=2.0, told=9.0)]}, "health told late"),
        ({"troubles": [Trouble(kind="hang", at=1.0, told=1.0)]}, "no token came"),
    ],
)
def test_what_a_run_must_not_show(changes: dict[str, object], fault: str) -> None:
    fields: dict[str, object] = {"plan": Plan(), "before": LEDGER, "ledger": LEDGER} | changes
    (found,) = ChaosResult(**fields).faults()  # type: ignore[arg-type]  # the fields of one case
    assert fault in found

"""Figures that cross links: the whole is the sum of its parts, whatever they count."""

from typing import Any

import msgspec

from triolet.actors.gateway.accounts import Accounts, add_up
from triolet.protocol.reports import Figures, FrontReport, ProcessFigures

PROCESS = ProcessFigures(tasks=3, fds=10, rss_bytes=1000, cpu_seconds=1.5)


def counted(factor: int) -> Accounts:
    """Every account with a value of its own."""
    accounts = Accounts()
    for place, (name, value) in enumerate(vars(accounts).items()):
        if isinstance(value, int | float):
            setattr(accounts, name, type(value)(factor * (place + 1)))
        elif hasattr(value, "observe"):
            for _ in range(factor):
                value.observe(0.01 * (place + 1))
        else:
            value[f"code{place}"] += factor * (place + 1)
    return accounts


def test_the_sum_of_reports_is_that_of_one_process_that_counted_everything() -> None:
    crossed = [_over_a_link(counted(factor).figures()) for factor in (1, 2)]
    whole, alone = add_up(crossed).figures(), counted(3).figures()
    assert whole.keys() == alone.keys()
    for name, value in alone.items():
        assert _plain(whole[name]) == _plain(value), name


def _over_a_link(figures: Figures) -> Figures:
    report = FrontReport(live=1, accounts=figures, process=PROCESS)
    return msgspec.msgpack.decode(msgspec.msgpack.encode(report), type=FrontReport).accounts


def _plain(value: object) -> object:
    plain: Any = msgspec.to_builtins(value)  # Any: JSON
    return [plain[0], round(plain[1], 9)] if type(plain) in (list, tuple) else plain

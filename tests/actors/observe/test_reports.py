"""Figures that cross links: the whole is the sum of its parts, whatever they count."""

import os

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from triolet.actors.gateway.accounts import Accounts, Figures
from triolet.actors.observe.ledger import open_files
from triolet.actors.observe.metrics import render_report
from triolet.actors.observe.reports import (
    FrontReport,
    ProcessFigures,
    ServerReport,
    WorkerFigures,
    add_up,
    whole_ledger,
)
from triolet.actors.supervisor.worker_status import Health, WorkerStatus

from ..scheduler.scheduling import new_state

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
    whole, alone = add_up(crossed), counted(3).figures()
    assert whole.keys() == alone.keys()
    for name, value in alone.items():
        assert _plain(whole[name]) == _plain(value), name


def test_open_files_are_counted() -> None:
    before = open_files()
    more = [os.open(os.devnull, os.O_RDONLY) for _ in range(3)]
    assert open_files() == before + 3
    for file in more:
        os.close(file)


def _over_a_link(figures: Figures) -> Figures:
    report = FrontReport(live=1, accounts=figures, process=PROCESS)
    return msgspec.msgpack.decode(msgspec.msgpack.encode(report), type=FrontReport).accounts


def _plain(value: object) -> object:
    plain = msgspec.to_builtins(value)
    return [plain[0], round(plain[1], 9)] if isinstance(plain, list | tuple) else plain


def test_the_whole_server_s_metrics_and_ledger() -> None:
    worker = WorkerStatus()
    worker.step_done(1, 0.004, 1.0)
    report = ServerReport(
        health=Health(ready=True, status="ready", reason=""),
        scheduler=new_state().statistics(),
        worker=WorkerFigures(pid=None, restarts=2, step_time=worker.step_time.figures()),
        live=5,
        accounts=add_up([counted(1).figures(), counted(2).figures()]),
        processes={"scheduler": PROCESS, "web-0": PROCESS, "web-1": PROCESS},
        silent=1,
        front_restarts=4,
    )
    report = msgspec.msgpack.decode(msgspec.msgpack.encode(report), type=ServerReport)
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(render_report(report, None).decode())
        for sample in family.samples
    }
    assert found["triolet_requests_live",] == 5
    assert found["triolet_requests_accepted_total",] == counted(3).accepted
    assert found["triolet_step_duration_seconds_count",] == 1
    assert found["triolet_worker_restarts_total",] == 2
    assert found["triolet_process_resident_memory_bytes", "web-1"] == 1000
    assert found["triolet_web_processes_silent",] == 1
    assert found["triolet_web_process_restarts_total",] == 4
    ledger = whole_ledger(report)
    assert (ledger.requests, ledger.tasks, ledger.fds, ledger.rss_bytes, ledger.children) == (5, 9, 30, 3000, 2)

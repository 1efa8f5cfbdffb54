"""The report: its words, its drawings, and the page in a real Chromium."""

import os
import shutil
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from playwright.sync_api import Browser, sync_playwright
from rich.console import Console

from triolet.loadtest.serve.charts import charts
from triolet.loadtest.serve.mix import Mix, Tenant
from triolet.loadtest.serve.plots import nice_ticks, svg
from triolet.loadtest.serve.report_html import page
from triolet.loadtest.serve.result import Result
from triolet.loadtest.serve.slo import Slo
from triolet.loadtest.serve.text_report import group_rows, headline_rows, latency_rows, show

from .made import record, result_of

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
CHARTS = ["Output", "Requests in flight", "Distribution of latencies", "Time to first token", "End to end"]


def _result(*, overloaded: bool = False) -> Result:
    records = [
        record(intended=number * 0.1, first=0.1 + 0.01 * (number % 7), conversation=number, tenant="ab"[number % 2])
        for number in range(40)
    ]
    records.append(record(intended=3.0, outcome="server_error", detail="<b>oops</b>", conversation=40, tenant="a"))
    tenants = (Tenant(name="a"), Tenant(name="b"))
    result = result_of(records, slo=Slo(ttft=0.15), mix=Mix(tenants=tenants), warmup_seconds=1.0)
    if overloaded:
        client = structs.replace(result.client, bottleneck=True, reasons=("it took 99% of a core",))
        result = structs.replace(result, client=client)
    return result


def test_drawings_are_well_formed_and_lie_within_their_frame() -> None:
    for chart in charts(_result()):
        root = ElementTree.fromstring(svg(chart))
        width, height = map(float, root.attrib["viewBox"].split()[2:])
        points = [
            tuple(map(float, point.split(",")))
            for line in root.iter("polyline")
            for point in line.attrib["points"].split()
        ]
        assert all(0 <= x <= width and 0 <= y <= height for x, y in points)
        assert points or "dots" in svg(chart)


@given(st.floats(0, 1e6), st.floats(1e-6, 1e6))
def test_ticks_are_few_and_within_their_range(low: float, span: float) -> None:
    ticks = nice_ticks(low, low + span)
    assert len(ticks) <= 7
    assert all(low - span * 1e-6 <= tick <= low + span * (1 + 1e-6) for tick in ticks)


def test_lower_bounds_are_marked_and_exact_figures_are_not() -> None:
    """Of ten requests one was given up: the median is exact, the tail and the mean are at least so much."""
    records = [record(intended=number * 0.1, conversation=number) for number in range(9)]
    records.append(
        record(intended=1.0, arrivals=[], ended=31.0, outcome="unfinished", output_tokens=0, conversation=9, tenant="b")
    )
    result = result_of(records)
    first = next(row for row in latency_rows(result) if row[0] == "time to first token")
    assert (first[1], first[2], first[5], first[8]) == ("≥ 3,090", "100.0", "≥ 30,000", "10, 1 of them ≥")
    (note,) = [text for label, text in headline_rows(result) if label == "note"]
    assert note.startswith("1 requests were given up")
    assert "≥ 30,000" in next(row for row in group_rows(result) if row[0] == "tenant b")
    exact = result_of(records[:9])
    assert "≥" not in str([latency_rows(exact), headline_rows(exact)])


def test_the_terminal_says_what_the_page_says(capsys: pytest.CaptureFixture[str]) -> None:
    show(_result(overloaded=True), Console(width=160))
    text = capsys.readouterr().out
    assert "The load client was itself the bottleneck: it took 99% of a core." in text
    assert "time to first token" in text
    assert "tenant a" in text
    assert "server_error" in text
    assert "60.0% within ttft 150.0 ms" in text or "within ttft 150.0 ms" in text
    show(_result(), Console(width=160))
    assert "bottleneck" not in capsys.readouterr().out


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        message = "no Chromium on this machine: install the package chromium to test the report"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


def test_the_page_shows_tables_and_plots_and_needs_nothing_else(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(page(_result(overloaded=True)), encoding="utf-8")
    opened = browser.new_page(viewport={"width": 1280, "height": 900})
    asked: list[str] = []
    opened.on("request", lambda request: asked.append(request.url))
    opened.goto(path.as_uri())
    assert asked == [path.as_uri()]
    assert opened.get_by_role("alert").inner_text().startswith("The load client was itself the bottleneck")
    assert opened.get_by_role("heading", level=1).inner_text() == "a <model>"
    rows = opened.locator("table.latencies tbody tr td:first-child").all_inner_texts()
    assert rows[:4] == ["time to first token", "inter-token latency", "time per output token", "end to end"]
    assert opened.locator("table.groups tbody tr").count() == 2
    assert "<b>oops</b>" in opened.locator("table.outcomes").inner_text()
    shown = opened.locator("svg")
    assert [shown.nth(place).get_attribute("aria-label") for place in range(len(CHARTS))] == CHARTS
    for place in range(shown.count()):
        box = shown.nth(place).bounding_box()
        assert box is not None
        assert box["width"] > 300
        assert box["height"] > 100
        assert shown.nth(place).locator("polyline, path.dots").count() >= 1
    opened.set_viewport_size({"width": 400, "height": 800})
    assert opened.evaluate("document.documentElement.scrollWidth <= 400"), "the page scrolls sideways on a phone"
    opened.close()

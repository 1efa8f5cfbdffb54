"""Reports side by side: a row per check, a column per server."""

from collections import Counter
from collections.abc import Sequence
from typing import Final

from msgspec import Struct
from rich.table import Table

from ..table import terminal_table
from .check import CheckResult

STYLES: Final = {"ok": "", "fails": "red", "not offered": "dim"}


class Report(Struct, frozen=True, kw_only=True):
    """All results for one server."""

    name: str
    url: str
    model: str
    results: tuple[CheckResult, ...]

    @property
    def sums(self) -> str:
        counts = Counter(result.verdict for result in self.results)
        return f"{counts['ok']} ok, {counts['fails']} fail, {counts['not offered']} not offered"

    @property
    def fails(self) -> bool:
        return any(result.verdict == "fails" for result in self.results)


def table_of(reports: Sequence[Report]) -> Table:
    """The first report says which rows; a check that another one lacks is an empty cell there."""
    found = [{(each.group, each.check): each for each in report.results} for report in reports]
    rows, styles = [("", "", *(report.name for report in reports))], list[str]()
    group = ""
    for result in reports[0].results:
        cells = [of.get((result.group, result.check)) for of in found]
        rows.append((result.group if result.group != group else "", result.check, *map(_cell, cells)))
        styles.append(STYLES[result.verdict])
        group = result.group
    rows.append(("", "", *(report.sums for report in reports)))
    return terminal_table(rows, left=range(len(rows[0])), fold=True, styles=[*styles, "bold"])


def _cell(result: CheckResult | None) -> str:
    if result is None:
        return ""
    return f"fails: {result.detail}" if result.verdict == "fails" else result.verdict

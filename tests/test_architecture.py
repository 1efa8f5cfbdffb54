"""docs/architecture.md and the README's first paragraph say what the code says; no two parts import each other."""

import re
from pathlib import Path

import pytest

from .architecture.graph import House, between_rooms, circles, read_house, reduced
from .architecture.picture import PICTURE, draw
from .architecture.request_path import ROOT, trace_one_request

PAGE = (ROOT / "docs/architecture.md").read_text()


@pytest.fixture(scope="module")
def house() -> House:
    return read_house()


def test_no_modules_import_each_other(house: House) -> None:
    assert circles(house.imports) == []


def test_no_rooms_import_each_other(house: House) -> None:
    """But for the commands of `bench` and the library behind them, which reads its variants with `serve`'s options."""
    assert circles(between_rooms(house)) == [["cli", "loadtest"]]


def test_circles_are_found() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set[str](), "e": {"f"}, "f": {"e", "a"}}
    assert circles(graph) == [["b", "c"], ["e", "f"]]


def test_arrows_that_a_longer_way_implies_are_left_out() -> None:
    assert reduced({"a": {"b", "c", "d"}, "b": {"c"}, "c": {"d"}, "d": set()}) == {
        "a": {"b"},
        "b": {"c"},
        "c": {"d"},
        "d": set(),
    }


def test_the_picture_shows_the_house_as_it_is(house: House) -> None:
    assert PICTURE.read_text() == draw(house), "draw it anew: make architecture"


def test_the_picture_refuses_a_room_without_a_place(house: House) -> None:
    larger = house._replace(
        imports={**house.imports, "web.cellar.wine": set()}, rooms={**house.rooms, "web.cellar.wine": "web/cellar"}
    )
    with pytest.raises(ValueError, match="web/cellar"):
        draw(larger)


def test_the_reading_list_is_a_walk_of_about_35_files() -> None:
    section = PAGE.split("## A reading list", 1)[1].split("\n## ", 1)[0]
    files = re.findall(r"^\d+\. `([\w/.]+)`", section, re.M)
    assert 30 <= len(files) <= 40
    assert len(set(files)) == len(files)
    assert all((ROOT / name).is_file() for name in files)


def test_the_readme_counts_what_a_request_runs_through(tmp_path: Path) -> None:
    """Near enough: a count to the file and line would change with every second commit."""
    said = re.search(r"(\d+) files and\s+([\d,]+) lines", (ROOT / "README.md").read_text())
    assert said, "README.md does not say how long the path of a request is"
    executed = trace_one_request(tmp_path)
    files, lines = int(said[1]), int(said[2].replace(",", ""))
    assert abs(files - len(executed.files)) <= 3, f"{len(executed.files)} files: {executed.files}"
    assert abs(lines - executed.lines) <= 0.05 * lines, f"{executed.lines} lines"

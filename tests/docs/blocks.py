"""The fenced blocks of a page: what is run, what it is said to print, and what is not run and why. Pure.

A block of `sh`, `console`, `python` or `javascript` is run. A block of `json` or `text` that directly follows one of
them states its output. The comment `<!-- not run: reason -->` above a block exempts it.
"""

import json
import re
from collections.abc import Iterator
from typing import NamedTuple, cast

RUN = ("sh", "console", "python", "javascript")
STATED = ("json", "text")
SHOWN = ("toml", "ini", "nginx", "caddy", "yaml", "ts")  # parts of files, which other tests may read
LANGUAGES = (*RUN, *STATED, *SHOWN)

_FENCE = re.compile(r"^```([^\n`]*)\n(.*?)^```$", re.M | re.S)
_EXEMPTION = re.compile(r"<!-- not run:(.*?)-->\s*\Z", re.S)


class Block(NamedTuple):
    line: int
    language: str
    text: str
    output: str | None = None  # what the block below says that it prints
    not_run: str | None = None  # why, or "" where the comment gives no reason


def blocks_of(page: str) -> list[Block]:
    """The blocks of a page in their order; a block of output belongs to the block above it."""
    found: list[Block] = []
    end = 0
    for fence in _FENCE.finditer(page):
        between, end = page[end : fence.start()], fence.end()
        language, text = fence[1], fence[2]
        exemption = _EXEMPTION.search(between)
        if (
            language in STATED
            and not between.strip()
            and found
            and found[-1].language in ("sh", "python", "javascript")
        ):
            found[-1] = found[-1]._replace(output=text)
        else:
            line = page.count("\n", 0, fence.start()) + 1
            found.append(Block(line, language, text, None, exemption[1].strip() if exemption else None))
    return found


def commands_of(console: str) -> Iterator[tuple[str, str]]:
    """Each command of a console block, with the output that it is said to have."""
    for part in re.split(r"^\$ ", console, flags=re.M)[1:]:
        command, _, output = re.sub(r"\\\n", "\\\\\0", part).partition("\n")
        yield command.replace("\0", "\n"), output


def agrees(stated: str, printed: str) -> bool:
    """Whether a command printed what is stated. `…` stands for anything, and white space does not count.

    Of a JSON object the stated fields are compared, wherever they are: others may be left out.
    """
    try:
        return _contains(json.loads(stated), json.loads(printed))
    except ValueError:
        parts = [re.escape(" ".join(part.split())) for part in stated.split("…")]
        return re.fullmatch(r"\s*.*?\s*".join(parts), " ".join(printed.split()), re.S) is not None


def _contains(stated: object, printed: object) -> bool:
    match stated, printed:
        case "…", _:
            return True
        case str(), str():
            return re.fullmatch(".*?".join(map(re.escape, stated.split("…"))), printed, re.S) is not None
        case dict(), dict():
            fields, values = cast("dict[str, object]", stated), cast("dict[str, object]", printed)
            return all(key in values and _contains(value, values[key]) for key, value in fields.items())
        case list(), list():
            items, others = cast("list[object]", stated), cast("list[object]", printed)
            return len(items) == len(others) and all(map(_contains, items, others))
        case _:
            return stated == printed and type(stated) is type(printed)

"""Changes JSON for the fuzzer, line by line: of bytes changed at random hardly any are another number, list or key."""

import json
from collections.abc import Iterable, Iterator
from random import Random
from typing import Any, Final, cast

ODD: Final[tuple[Any, ...]] = (  # Any: JSON
    *(None, True, False, 0, 1, -1, 1.5, 1e308, 1e-320, 2**31 - 1, 2**31, 2**53, 10**310, "", "x", "9"),
    *([], [1], [[]], {}, {"x": 1}),
)


class JsonMutator:
    """What `samples` say anywhere may be said anywhere else."""

    def __init__(self, samples: Iterable[bytes]) -> None:
        places = [place for sample in samples for _, value in _parsed(sample.split(b"\n")) for place in _places(value)]
        self._values = [*ODD, *(holder[key] for holder, key in places)]
        self._keys = sorted({"x", *(key for _, key in places if isinstance(key, str))})

    def mutated(self, data: bytes, seed: int) -> bytes | None:
        """With another value, another key, or one of them less; None where no line is JSON."""
        draw, lines = Random(seed), data.split(b"\n")
        found = [(line, value) for line, value in _parsed(lines) if value]
        if not found:
            return None
        line, value = draw.choice(found)
        holder, key = draw.choice([*_places(value)])
        if isinstance(key, str) and draw.random() < 0.3:
            key = draw.choice(self._keys)
        holder[key] = draw.choice(self._values)
        if draw.random() < 0.05:
            del holder[key]
        lines[line] = json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")
        return b"\n".join(lines)


def _parsed(lines: list[bytes]) -> Iterator[tuple[int, Any]]:  # Any: JSON
    """The lines that are objects or lists."""
    for line, text in enumerate(lines):
        if text.startswith((b"{", b"[")):
            try:
                yield line, json.loads(text)
            except (ValueError, RecursionError):
                continue


def _places(value: Any) -> Iterator[tuple[Any, Any]]:  # Any: JSON
    """Every value in a JSON value, as what holds it and the key or index there."""
    held: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, dict):
        held = cast("dict[str, Any]", value).items()
    elif isinstance(value, list):
        held = enumerate(cast("list[Any]", value))  # type: ignore[redundant-cast] # mypy's list[Any] is pyright's unknown
    for key, inner in held:
        yield value, key
        yield from _places(inner)

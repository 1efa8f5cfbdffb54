"""Where a JSON object ends, found while its text arrives in pieces; and whether a text ends inside a string. Pure.

It looks at strings and brackets alone: for a text that is JSON, the end is exact.
"""

import re
from typing import Final

_SIGNS: Final = re.compile(r'[{}\[\]"]')
_STRING: Final = re.compile(r'["\\]')
_QUOTE: Final = re.compile(r"""\\.|["']""", re.DOTALL)


class JsonExtent:
    """Reads one object or array."""

    __slots__ = ("_depth", "_escaped", "done", "in_string")

    def __init__(self) -> None:
        self._depth = 0
        self._escaped = False
        self.in_string = False
        self.done = False

    def read(self, text: str) -> int:
        """How many of these characters belong to the value."""
        place = 0
        while not self.done and place < len(text):
            if self._escaped:
                self._escaped = False
                place += 1
                continue
            sign = (_STRING if self.in_string else _SIGNS).search(text, place)
            if sign is None:
                return len(text)
            place = sign.end()
            self._take(sign[0])
        return place

    def _take(self, sign: str) -> None:
        if sign == "\\":
            self._escaped = True
        elif sign == '"':
            self.in_string = not self.in_string
        else:
            self._depth += 1 if sign in "{[" else -1
            self.done = self._depth <= 0


def ends_in_string(text: str, quotes: str = '"') -> bool:
    """Whether a text, of which all that is quoted are strings, ends inside one; `quotes` may begin them."""
    begun = ""
    for sign in _QUOTE.finditer(text):
        if sign[0] == begun:
            begun = ""
        elif not begun and sign[0] in quotes:
            begun = sign[0]
    return begun != ""

"""The few instructions of pickle that files of tensors consist of, interpreted by hand: no code is found or run.

A pickle is a program for a machine with a stack and a memo. This one makes texts, numbers, tuples, lists and dicts; a
name of Python (`GLOBAL`) is only compared with a list, and a call (`REDUCE`) only described, by those that know tensors
(tensors.py). An instruction or a name that is not among them is refused by its name.
Bounds: the instructions, their bytes, the stack; so a hostile pickle costs a second and some tens of megabytes. Values
are never compared, hashed or printed here, since they may be nested without end, or contain themselves.
"""

from __future__ import annotations

import mmap
import pickletools
import struct
from collections.abc import Callable
from typing import ClassVar, Final, NamedTuple, Protocol, cast

from ...errors import CheckpointError, UnsupportedModel

MAX_PICKLE_BYTES: Final = 8 << 20  # a tensor takes 150 to 400
MAX_INSTRUCTIONS: Final = 1 << 19  # a tensor takes 30
MAX_STACK: Final = 1 << 13  # Python puts 1,000 pairs on it at most
MAX_TEXT: Final = 4096
MAX_INTEGER_BYTES: Final = 16
REMEDY: Final = "a file of tensors needs none of it, and nothing of it was run; take the model as safetensors"


class Global(NamedTuple):
    """A name of Python that the file mentions; nothing is looked up."""

    name: str


class Meaning(Protocol):
    """What names, calls and persistent ids stand for."""

    names: frozenset[str]

    def call(self, name: str, arguments: tuple[object, ...]) -> object: ...
    def persistent(self, value: object) -> object: ...


class PickleMachine:
    """Runs one pickle of `data`, from `begin`, before `end`. Afterwards `position` is behind it."""

    def __init__(self, data: mmap.mmap | bytes, begin: int, end: int, file: str, meaning: Meaning) -> None:
        self.position = begin
        self._data, self._meaning = data, meaning
        self._end = min(end, begin + MAX_PICKLE_BYTES)
        self._place = f"{file}: pickle"
        self._stack: list[object] = []
        self._marks: list[int] = []
        self._memo: list[object] = []  # Python numbers what it remembers from 0 on

    def run(self) -> object:
        """The value that the pickle makes. Raises CheckpointError, and UnsupportedModel for what is not read."""
        for _ in range(MAX_INSTRUCTIONS):
            code = self._take(1)
            if code == b".":
                value = self._pop()
                if self._stack or self._marks:
                    raise self._damaged("values are left over at its end")
                return value
            action = self._ACTIONS.get(code)
            if action is None:
                raise UnsupportedModel(self._place, _name_of(code), f"instruction: {REMEDY}")
            action(self)
            if len(self._stack) + len(self._marks) > MAX_STACK:
                raise self._damaged(f"more than {MAX_STACK} values wait on the stack")
        raise self._damaged(f"more than {MAX_INSTRUCTIONS} instructions; save the model as safetensors")

    def _damaged(self, why: str) -> CheckpointError:
        return CheckpointError(self._place, f"byte {self.position}", why)

    def _take(self, count: int) -> bytes:
        begin, self.position = self.position, self.position + count
        if self.position > self._end:
            raise self._damaged(f"it is truncated, or has more than {MAX_PICKLE_BYTES} bytes")
        return self._data[begin : self.position]

    def _number(self, layout: str) -> int:
        return int(struct.unpack(layout, self._take(struct.calcsize(layout)))[0])

    def _text(self, count: int) -> str:
        if count > MAX_TEXT:
            raise self._damaged(f"a text of {count} bytes; names have at most {MAX_TEXT}")
        try:
            return self._take(count).decode()
        except UnicodeDecodeError as error:
            raise self._damaged(f"a text is not UTF-8 ({error.reason})") from None

    def _line(self) -> str:
        end = self._data.find(b"\n", self.position, min(self.position + MAX_TEXT, self._end))
        if end < 0:
            raise self._damaged("a name has no end")
        text = self._text(end - self.position)
        self.position += 1
        return text

    def _pop(self) -> object:
        if len(self._stack) <= (self._marks[-1] if self._marks else 0):
            raise self._damaged("the stack is empty")
        return self._stack.pop()

    def _top(self) -> object:
        value = self._pop()
        self._stack.append(value)
        return value

    def _pop_marked(self) -> list[object]:
        if not self._marks:
            raise self._damaged("there is no mark")
        begin = self._marks.pop()
        values = self._stack[begin:]
        del self._stack[begin:]
        return values

    def _push_tuple(self, count: int) -> None:
        self._stack.append(tuple([self._pop() for _ in range(count)][::-1]))

    def _push_global(self, module: object, name: object) -> None:
        if not (isinstance(module, str) and isinstance(name, str)):
            raise self._damaged("a name is no text")
        if (full := f"{module}.{name}") not in self._meaning.names:
            raise UnsupportedModel(self._place, full, f"a name of Python: {REMEDY}")
        self._stack.append(Global(full))

    def _stack_global(self) -> None:
        name, module = self._pop(), self._pop()
        self._push_global(module, name)

    def _remember(self, index: int) -> None:
        value = self._top()
        if index > len(self._memo):
            raise self._damaged(f"place {index} of the memo, of which {len(self._memo)} are in use")
        self._memo[index : index + 1] = [value]

    def _recall(self, index: int) -> None:
        if index >= len(self._memo):
            raise self._damaged(f"place {index} of the memo is empty")
        self._stack.append(self._memo[index])

    def _reduce(self) -> None:
        arguments, called = self._pop(), self._pop()
        if not isinstance(called, Global) or not isinstance(arguments, tuple):
            raise self._damaged("a call of something that is no name")
        self._stack.append(self._meaning.call(called.name, cast("tuple[object, ...]", arguments)))

    def _build(self) -> None:
        """State for a dict is about the module that it was (`_metadata`), not about its tensors."""
        state, target = self._pop(), self._top()
        if not (isinstance(target, dict) and isinstance(state, dict)):
            raise UnsupportedModel(self._place, _name_of(b"b"), f"of something that is no dict: {REMEDY}")

    def _append(self, values: list[object]) -> None:
        target = self._top()
        if not isinstance(target, list):
            raise self._damaged("values are added to something that is no list")
        cast("list[object]", target).extend(values)

    def _set(self, values: list[object]) -> None:
        target = self._top()
        if not isinstance(target, dict) or len(values) % 2:
            raise self._damaged("pairs are added to something that is no dict")
        pairs = cast("dict[str, object]", target)
        for key, value in zip(values[::2], values[1::2], strict=True):
            if not isinstance(key, str):
                raise UnsupportedModel(self._place, type(key).__name__, "as a key: only texts name tensors")
            if key in pairs:
                raise self._damaged(f"the key {key!r:.100} occurs twice")
            pairs[key] = value

    def _set_one(self) -> None:
        value, key = self._pop(), self._pop()
        self._set([key, value])

    def _integer(self) -> None:
        count = self._take(1)[0]
        if count > MAX_INTEGER_BYTES:
            raise self._damaged(f"an integer of {count} bytes")
        self._stack.append(int.from_bytes(self._take(count), "little", signed=True))

    def _float(self) -> None:
        self._stack.append(float(struct.unpack(">d", self._take(8))[0]))

    def _protocol(self) -> None:
        if (version := self._take(1)[0]) > 5:
            raise UnsupportedModel(f"{self._place} protocol", version, "2 to 5 are read")

    def _push(self, value: object) -> None:
        self._stack.append(value)

    _ACTIONS: ClassVar[dict[bytes, Callable[[PickleMachine], object]]] = {
        b"\x80": lambda m: m._protocol(),
        b"\x95": lambda m: m._take(8),  # FRAME: how much may be read ahead
        b"(": lambda m: m._marks.append(len(m._stack)),
        b"N": lambda m: m._push(None),
        b"\x88": lambda m: m._push(True),
        b"\x89": lambda m: m._push(False),
        b"K": lambda m: m._push(m._take(1)[0]),
        b"M": lambda m: m._push(m._number("<H")),
        b"J": lambda m: m._push(m._number("<i")),
        b"\x8a": lambda m: m._integer(),
        b"G": lambda m: m._float(),
        b"X": lambda m: m._push(m._text(m._number("<I"))),
        b"\x8c": lambda m: m._push(m._text(m._take(1)[0])),
        b")": lambda m: m._push(()),
        b"\x85": lambda m: m._push_tuple(1),
        b"\x86": lambda m: m._push_tuple(2),
        b"\x87": lambda m: m._push_tuple(3),
        b"t": lambda m: m._push(tuple(m._pop_marked())),
        b"]": lambda m: m._push(list[object]()),
        b"a": lambda m: m._append([m._pop()]),
        b"e": lambda m: m._append(m._pop_marked()),
        b"}": lambda m: m._push(dict[str, object]()),
        b"s": lambda m: m._set_one(),
        b"u": lambda m: m._set(m._pop_marked()),
        b"c": lambda m: m._push_global(m._line(), m._line()),
        b"\x93": lambda m: m._stack_global(),
        b"q": lambda m: m._remember(m._take(1)[0]),
        b"r": lambda m: m._remember(m._number("<I")),
        b"\x94": lambda m: m._remember(len(m._memo)),
        b"h": lambda m: m._recall(m._take(1)[0]),
        b"j": lambda m: m._recall(m._number("<I")),
        b"Q": lambda m: m._push(m._meaning.persistent(m._pop())),
        b"R": lambda m: m._reduce(),
        b"b": lambda m: m._build(),
    }


_NAMES: Final = {opcode.code: opcode.name for opcode in pickletools.opcodes}


def _name_of(code: bytes) -> str:
    return _NAMES.get(code.decode("latin-1"), repr(code))

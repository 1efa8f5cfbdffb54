"""The bundled model's held-out instances: conversations not in its training data, and their right answers."""

import re
from pathlib import Path

import msgspec

from ..protocol.requests import ChatMessage

HELD_OUT = Path(__file__).parent / "data" / "demo_heldout.jsonl"
LONGEST_ANSWER = 200  # tokens; the longest expected answer, a story, has about 90
CALL, CALL_END = "<tool_call>", "</tool_call>"


class Instance(msgspec.Struct, frozen=True):
    """One line of the held-out set."""

    family: str
    wording: str
    messages: tuple[ChatMessage, ...]
    check: str
    expected: str

    def accepts(self, answer: str) -> bool:
        match self.check:
            case "exact":
                return _same_call(answer, self.expected) if self.expected.startswith(CALL) else answer == self.expected
            case "regex":
                return re.fullmatch(self.expected, answer) is not None
            case other:
                raise ValueError(f'check must be "exact" or "regex", not {other!r} (family {self.family!r})')


def _same_call(answer: str, expected: str) -> bool:
    """Whether both are one tool call with equal JSON; a server that parses calls may change the spacing."""
    if not (answer.startswith(CALL) and answer.endswith(CALL_END)):
        return False
    try:
        call = msgspec.json.decode(answer.removeprefix(CALL).removesuffix(CALL_END))
    except msgspec.DecodeError:
        return False
    return bool(call == msgspec.json.decode(expected.removeprefix(CALL).removesuffix(CALL_END)))


def read_instances(path: Path, limit: int | None) -> list[Instance]:
    """The instances of the file, at most `limit` per family."""
    taken: dict[str, int] = {}
    kept: list[Instance] = []
    for line in path.read_bytes().splitlines():
        instance = msgspec.json.decode(line, type=Instance)
        taken[instance.family] = taken.get(instance.family, 0) + 1
        if limit is None or taken[instance.family] <= limit:
            kept.append(instance)
    return kept

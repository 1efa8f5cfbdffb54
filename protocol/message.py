"""The base of every message: a frozen, tagged Struct that `link` can carry between processes.

Messages hold only what msgpack can encode: numbers, strings, tuples and other Structs. No tensors, channels or handles.
A channel's type is a union of messages, declared beside them, and every `match` over one ends in `assert_never`.
"""

import re

from msgspec import Struct


def snake_case(name: str) -> str:
    """`StepDone` -> `step_done`: the tag of a message on the wire."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


class Message(Struct, frozen=True, kw_only=True, tag_field="type", tag=snake_case):
    """What actors send to each other."""

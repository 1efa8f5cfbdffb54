"""What `triolet bench behaviour` examines, and how. Nothing to run yet: help reads the defaults."""

from typing import Any

from msgspec import Struct


class BehaviourPlan(Struct, frozen=True, kw_only=True):
    """What is done to a server, and how long to wait."""

    streams: int = 4
    long_tokens: int = 1000  # an answer that must still run when something is done to the server
    drain_tokens: int = 100  # an answer that a draining server should finish
    readers: int = 32
    flood: int = 64
    flood_tokens: int = 64
    hold_seconds: float = 8.0  # slow readers hold their streams this long
    patience: float = 30.0


class Subject(Struct, frozen=True, kw_only=True):
    """A server: started here by `command` with `{port}` in it, or running at `url`."""

    name: str
    command: str | None = None
    url: str | None = None
    pid: int | None = None
    model: str | None = None
    keys: tuple[str, ...] = ()
    fields: dict[str, Any] = {}  # Any: JSON

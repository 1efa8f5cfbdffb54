"""One line of the records' file: everything measured of one request, and the times that follow from it. Pure.

All times are seconds after the run began, on one clock. Two starts are kept: `intended`, when the arrival process or
the client wanted the request, and `started`, when this program began with it. Latencies count from the intended one,
so that a server which holds up its clients cannot hide the requests they would have sent (coordinated omission).
For the same reason a wait that the client gave up is a time too, a lower bound: `ended` stands for what never came.
"""

from itertools import pairwise
from typing import Literal

from msgspec import Struct

from ..client.ending import GIVEN_UP, Outcome
from .mix import Behaviour


class Record(Struct, frozen=True, kw_only=True):
    conversation: int  # in the order of intended starts; what it asks depends on this number and the seed alone
    turn: int
    phase: Literal["warm-up", "measured"]
    tenant: str
    priority: int | None
    behaviour: Behaviour
    intended: float
    started: float
    sent: float | None  # the last byte of the request was with the kernel
    head: float | None  # the status was there
    arrivals: list[float]  # of every piece of text
    counts: list[int] | None  # tokens of each piece, where the protocol tells them
    ended: float
    prompt_tokens_asked: int
    output_tokens_asked: int
    prompt_tokens: int | None  # as the server's usage counts them
    cached_tokens: int | None
    output_tokens: int  # by usage, else by counts, else one per piece
    output_tokens_told: bool  # whether the server told them
    reused: bool  # a connection that had carried a request before
    outcome: Outcome
    status: int | None
    finish: str | None
    detail: str  # of a failure


def given_up(record: Record) -> bool:
    return record.outcome in GIVEN_UP


def time_to_first_token(record: Record) -> float | None:
    """A lower bound where the client gave up before there was one."""
    if record.arrivals:
        return record.arrivals[0] - record.intended
    return record.ended - record.intended if given_up(record) else None


def time_to_first_token_once_started(record: Record) -> float | None:
    """As above; of a request that got its place in the client only to be ended, the bound is next to nothing."""
    if record.arrivals:
        return record.arrivals[0] - record.started
    return record.ended - record.started if given_up(record) else None


def end_to_end(record: Record) -> float:
    return record.ended - record.intended


def time_per_output_token(record: Record) -> float | None:
    """The mean after the first token."""
    if record.output_tokens < 2 or len(record.arrivals) < 2:
        return None
    return (record.arrivals[-1] - record.arrivals[0]) / (record.output_tokens - 1)


def gaps(record: Record) -> list[float]:
    """From each piece to the next: a piece of several tokens is one arrival, as its reader sees it."""
    times = record.arrivals
    return [later - earlier for earlier, later in pairwise(times)]


def open_gap(record: Record) -> float | None:
    """From the last piece to the moment when the client gave up: the gap was longer."""
    return record.ended - record.arrivals[-1] if record.arrivals and given_up(record) else None


def tokens_per_piece(record: Record) -> list[float]:
    """Each piece's tokens; where the protocol does not tell them, equal parts of the answer's."""
    if record.counts is not None:
        return [float(count) for count in record.counts]
    pieces = len(record.arrivals)
    return [record.output_tokens / pieces] * pieces if pieces else []

"""One line of the records file: everything measured for one request, and the times derived from it. Pure.

All times are seconds after the run began, on one clock. There are two starts: `intended`, when the arrival process
or the client wanted the request, and `started`, when this program began it. Latencies count from the intended start.
Otherwise a server that delays its clients could hide the requests they would have sent (coordinated omission).
For the same reason a wait that the client gave up counts as a lower bound: `ended` replaces the missing time.
"""

from itertools import pairwise
from typing import Literal

from msgspec import Struct

from ..client.ending import GIVEN_UP, Outcome
from .mix import Behaviour


class Record(Struct, frozen=True, kw_only=True):
    conversation: int  # in order of intended starts; this number and the seed alone decide what it asks
    turn: int
    phase: Literal["warm-up", "measured"]
    tenant: str
    priority: int | None
    behaviour: Behaviour
    intended: float
    started: float
    sent: float | None  # the last byte of the request was given to the kernel
    head: float | None  # the status line arrived
    arrivals: list[float]  # of every piece of text
    counts: list[int] | None  # tokens of each piece, if the protocol reports them
    ended: float
    prompt_tokens_asked: int
    output_tokens_asked: int
    prompt_tokens: int | None  # as the server's usage counts them
    cached_tokens: int | None
    output_tokens: int  # from usage, else from counts, else one per piece
    output_tokens_told: bool  # whether the server reported them
    reused: bool  # whether the connection had carried a request before
    outcome: Outcome
    status: int | None
    finish: str | None
    detail: str  # of a failure


def given_up(record: Record) -> bool:
    return record.outcome in GIVEN_UP


def time_to_first_token(record: Record) -> float | None:
    """A lower bound if the client gave up before the first piece."""
    if record.arrivals:
        return record.arrivals[0] - record.intended
    return record.ended - record.intended if given_up(record) else None


def time_to_first_token_once_started(record: Record) -> float | None:
    """As above. If a request was ended as soon as it could start, the bound is close to 0."""
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
    """From each piece to the next. A piece of several tokens is one arrival, as a reader sees it."""
    times = record.arrivals
    return [later - earlier for earlier, later in pairwise(times)]


def open_gap(record: Record) -> float | None:
    """From the last piece until the client gave up; the true gap is longer."""
    return record.ended - record.arrivals[-1] if record.arrivals and given_up(record) else None


def tokens_per_piece(record: Record) -> list[float]:
    """Tokens per piece. If the protocol does not report them, the answer's tokens are split equally."""
    if record.counts is not None:
        return [float(count) for count in record.counts]
    pieces = len(record.arrivals)
    return [record.output_tokens / pieces] * pieces if pieces else []

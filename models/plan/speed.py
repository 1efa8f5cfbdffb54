"""How fast a model can be: the roofline of one device, from bytes and operations of a token. Pure arithmetic.

A step takes at least as long as its bytes at the device's bandwidth, and as its operations at the device's rate
(Williams, Waterman and Patterson, "Roofline", CACM 52/4, 2009). Decoding reads all weights for each step, whatever the
number of sequences, and each sequence's cache; so one sequence is bound by memory, and many by arithmetic.
"""

from msgspec import Struct

from ...protocol.steps import TokenWork


class Rates(Struct, frozen=True, kw_only=True):
    """What a device does in a second. `measured`: on this machine, with this program; else a maker's peak, a bound."""

    bandwidth: float | None  # bytes
    operations: float | None
    measured: bool = False


class Speeds(Struct, frozen=True, kw_only=True):
    """Tokens per second; None where the device's rate is not known."""

    decode: float | None  # one sequence
    prefill: float | None
    balance: int | None  # sequences in a step from which on arithmetic decides, not memory
    decode_many: float | None  # of so many sequences together, as many as fit at most
    many: int
    measured: bool


def speeds(work: TokenWork, rates: Rates, *, context: int, most: int) -> Speeds:
    """At `context` tokens per sequence; `most` sequences of that length fit."""
    decode, balance = None, None
    if rates.bandwidth is not None:
        decode = 1 / _step_seconds(work, rates, 1, context)
        balance = _balance(work, rates, context)
    many = max(1, most if balance is None else min(most, balance))
    return Speeds(
        decode=decode,
        prefill=None if rates.operations is None else rates.operations / work.prompt_operations,
        balance=balance,
        decode_many=None if rates.bandwidth is None else many / _step_seconds(work, rates, many, context),
        many=many,
        measured=rates.measured,
    )


def rates_of(work: TokenWork, *, decode: float, prefill: float, context: float, batch: int) -> Rates:
    """The inverse: what a device did, by measured tokens per second at a mean of `context` tokens.

    Decoding several sequences may be bound by arithmetic, so it tells the bandwidth only for one.
    """
    bandwidth = decode * (work.weight_bytes + work.kv_bytes * context) if batch == 1 and decode else None
    return Rates(bandwidth=bandwidth, operations=prefill * work.prompt_operations, measured=True)


def cost_of_million(price: float, tokens_per_second: float) -> float:
    """What a million tokens cost at `price` an hour."""
    return price / 3600 / tokens_per_second * 1e6


def weights_read(work: TokenWork, tokens: int) -> int:
    """Bytes of weights that a step of so many tokens reads: each takes its own experts."""
    return min(work.all_weight_bytes, tokens * work.weight_bytes)


def _step_seconds(work: TokenWork, rates: Rates, sequences: int, context: int) -> float:
    assert rates.bandwidth is not None
    reading = (weights_read(work, sequences) + sequences * work.kv_bytes * context) / rates.bandwidth
    computing = 0.0 if rates.operations is None else sequences * work.operations / rates.operations
    return max(reading, computing)


def _balance(work: TokenWork, rates: Rates, context: int) -> int | None:
    """None: reading the caches always takes longer than computing, or the rate of computing is not known."""
    if rates.operations is None or rates.bandwidth is None:
        return None
    each = work.operations / rates.operations - work.kv_bytes * context / rates.bandwidth
    return None if each <= 0 else max(1, round(work.all_weight_bytes / rates.bandwidth / each))

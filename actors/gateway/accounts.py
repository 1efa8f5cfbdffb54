"""The gateway's counters: times, tokens and endings of all requests. Numbers only; `metrics` names them."""

from collections import Counter
from collections.abc import Iterable
from typing import Final

from ...protocol.reports import Figures, HistogramFigures
from ..histogram import Histogram
from .history import History, StreamRecord

# Seconds. A small model gives its first token in milliseconds, a large one on a CPU in a minute. Neighbours differ by a
# factor of 2 to 2.5: the error of a quantile stays below the spread between measurements.
FIRST_TOKEN_BOUNDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
BETWEEN_TOKENS_BOUNDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)
TOKEN_BOUNDS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)
MAX_ADAPTER_LABELS: Final = 64  # names of LoRA adapters that are told apart; clients may load any number
REQUEST_BOUNDS: Final = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)

OTHER_ADAPTERS: Final = "others"  # the label of those beyond that


class Accounts:
    """The gateway's counters and histograms since the start."""

    def __init__(self) -> None:
        self.accepted = 0
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self.cached_tokens = 0
        self.text_seconds = 0.0  # in the detokenizer, including its writes to sockets
        self.adapters: Counter[str] = Counter()  # accepted requests by the name of their LoRA adapter
        self.finished: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.key_tokens: Counter[str] = Counter()  # of ended requests, by the name of their API key if it has one
        self.key_refused: Counter[str] = Counter()  # beyond the limits of a key, by its name
        self.http_errors: Counter[str] = Counter()  # by code, including requests that never reached the gateway
        self.kept_answers: Counter[str] = Counter()  # resumed, refused to be, given up for lack of room
        self.traces: Counter[str] = Counter()  # ended requests by the fate of their spans; empty without traces
        self.usage_records: Counter[str] = Counter()  # by their fate; empty if none are written
        self.queue_time = Histogram(FIRST_TOKEN_BOUNDS)
        self.first_token = Histogram(FIRST_TOKEN_BOUNDS)
        self.between_tokens = Histogram(BETWEEN_TOKENS_BOUNDS)
        self.request_time = Histogram(REQUEST_BOUNDS)
        self.prefill_time = Histogram(FIRST_TOKEN_BOUNDS)
        self.decode_time = Histogram(REQUEST_BOUNDS)
        self.prompt_length = Histogram(TOKEN_BOUNDS)
        self.answer_length = Histogram(TOKEN_BOUNDS)

    def count_accepted(self, adapter: str | None) -> None:
        """A request got a place."""
        self.accepted += 1
        if adapter is not None:
            told_apart = adapter in self.adapters or len(self.adapters) < MAX_ADAPTER_LABELS
            self.adapters[adapter if told_apart else OTHER_ADAPTERS] += 1

    def observe_end(self, history: History, now: float) -> None:
        """Record the times and lengths of an ended request, without phases that it never reached."""
        self.request_time.observe(now - history.arrival)
        if history.tokenized is not None:
            self.prompt_length.observe(history.usage.prompt_tokens)
        if history.first_token is not None:
            self.answer_length.observe(history.usage.completion_tokens)
            self.decode_time.observe(now - history.first_token)
            if history.started is not None:
                self.prefill_time.observe(history.first_token - history.started)

    def figures(self) -> Figures:
        """All counters by name, in the form that crosses a link."""
        figures: Figures = {}
        for name, value in vars(self).items():
            figures[name] = value.figures() if isinstance(value, Histogram) else value
        return figures

    def absorb(self, figures: Figures) -> None:
        """Add another process's counters."""
        for name, value in figures.items():
            ours: float | Counter[str] | Histogram = getattr(self, name)
            match ours, value:
                case Histogram(), HistogramFigures():
                    ours.absorb(value)
                case Counter(), dict():
                    ours.update(value)
                case int() | float(), int() | float():
                    setattr(self, name, ours + value)
                case _:
                    raise AssertionError(f"{name} is counted in two ways: {ours!r} and {value!r}")


def add_up(reports: Iterable[Figures]) -> Accounts:
    """The sum of several processes' counters."""
    total = Accounts()
    for figures in reports:
        total.absorb(figures)
    return total


class TokenTimes:
    """Token latencies for the histograms: to the first token, and between tokens, in seconds of the front's clock.

    Most streams of a step have waited equally long, so consecutive equal values are counted and observed once. Call
    `settle` after a step's last tokens.
    """

    __slots__ = ("_accounts", "_gap", "_gaps")

    def __init__(self, accounts: Accounts) -> None:
        self._accounts = accounts
        self._gap = 0.0
        self._gaps = 0  # how many streams had this gap and are not observed yet

    def note(self, live: StreamRecord, index: int, tokens: int, now: float) -> None:
        """Note that `tokens` tokens of a choice, at least one, arrived together."""
        times = live.last_token_at
        if last := times[index]:
            gap = (now - last) / tokens
            if gap != self._gap:
                self.settle()
                self._gap = gap
            self._gaps += 1
        elif live.first_token_at is None:
            live.first_token_at = now
            self._accounts.first_token.observe(now - live.request.arrival_time)
        times[index] = now
        live.completion_tokens += tokens

    def settle(self) -> None:
        """Observe what was counted."""
        if self._gaps:
            self._accounts.between_tokens.observe(self._gap, self._gaps)
            self._gaps = 0

"""One request as spans: a root, and one child per phase that it reached. Pure, and without OpenTelemetry.

Names follow OpenTelemetry's conventions for generative AI, and vLLM's where these have none (`gen_ai.latency.*`,
`gen_ai.request.id`, `gen_ai.usage.prompt_tokens`), so that tools for vLLM's spans can read ours. Never any text.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ..gateway.history import History

Attribute = str | int | float | Sequence[str]


class SpanRecord(NamedTuple):
    """An ended span. Times are nanoseconds of Unix time."""

    name: str
    start: int
    end: int
    attributes: dict[str, Attribute]


def root_span(history: History) -> SpanRecord:
    """The whole request."""
    end = _end(history)
    attributes: dict[str, Attribute | None] = {
        "gen_ai.operation.name": history.operation,
        "gen_ai.provider.name": "triolet",
        "gen_ai.request.model": history.model,
        "gen_ai.response.model": history.model,
        "gen_ai.response.id": history.id,
        "gen_ai.request.id": history.id,
        "gen_ai.request.choice.count": history.choices,
        "gen_ai.request.n": history.choices,
        "gen_ai.request.max_tokens": history.max_tokens,
        "gen_ai.request.temperature": history.temperature,
        "gen_ai.request.top_p": history.top_p,
        "gen_ai.usage.input_tokens": history.usage.prompt_tokens,
        "gen_ai.usage.output_tokens": history.usage.completion_tokens,
        "gen_ai.usage.cache_read.input_tokens": history.usage.cached_tokens,
        "gen_ai.usage.prompt_tokens": history.usage.prompt_tokens,
        "gen_ai.usage.completion_tokens": history.usage.completion_tokens,
        "gen_ai.response.finish_reasons": history.reasons or (history.reason or "error",),
        "gen_ai.latency.e2e": end - history.arrival,
        "gen_ai.latency.time_to_first_token": _between(history.arrival, history.first_token),
        "gen_ai.latency.time_in_queue": _between(history.tokenized, history.started),
        "gen_ai.latency.time_in_model_prefill": _between(history.started, history.first_token),
        "gen_ai.latency.time_in_model_decode": _between(history.first_token, end),
        "gen_ai.latency.time_in_model_inference": _between(history.started, end),
        "http.request.header.x-request-id": history.name or None,
        "error.type": history.error,
    }
    known = {name: value for name, value in attributes.items() if value is not None}
    return SpanRecord(f"{history.operation} {history.model}", *_clock(history, history.arrival, end), known)


def phase_spans(history: History) -> Iterator[SpanRecord]:
    """`tokenize`, `queue`, `prefill`, `decode`, each until the next; the last one reached, until the end."""
    starts = {
        "tokenize": history.arrival,
        "queue": history.tokenized,
        "prefill": history.started,
        "decode": history.first_token,
    }
    reached = [(name, start) for name, start in starts.items() if start is not None]
    ends = [*(start for _, start in reached[1:]), _end(history)]
    for (name, start), end in zip(reached, ends, strict=True):
        yield SpanRecord(name, *_clock(history, start, end), {})


def _end(history: History) -> float:
    assert history.finished is not None, "spans are made of requests that have ended"
    return history.finished


def _between(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else end - start


def _clock(history: History, start: float, end: float) -> tuple[int, int]:
    return round((start + history.wall_clock) * 1e9), round((end + history.wall_clock) * 1e9)

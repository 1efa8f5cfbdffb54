"""Whether usage records say what the terminal events say: one for each, with the same reason and the same counts."""

from collections.abc import Iterable

from triolet.actors.gateway.history import History
from triolet.protocol.events import Failed, Finished, StreamEvent, Usage
from triolet.protocol.usage import UsageRecord

Said = dict[str, tuple[str, str | None, Usage | None]]  # by id: reason, error code, counts (None: an error has none)


def disagreement(records: Iterable[History | UsageRecord], ends: Iterable[StreamEvent]) -> str | None:
    """What the records and the terminal events do not agree on."""
    recorded: Said = {}
    for record in records:
        if record.id in recorded:
            return f"{record.id} has two records"
        recorded[record.id] = _of_history(record) if isinstance(record, History) else _of_row(record)
    said: Said = {}
    for end in ends:
        assert isinstance(end, Finished | Failed)
        assert end.id not in said
        said[end.id] = (
            (end.reason, None, _counts(end.usage)) if isinstance(end, Finished) else ("error", end.code, None)
        )
    for id in said.keys() | recorded.keys():
        mine, theirs = recorded.get(id), said.get(id)
        if mine is None or theirs is None:
            return f"{id} has {'no record' if mine is None else 'a record and no end'}"
        if mine[:2] != theirs[:2] or theirs[2] not in (None, mine[2]):
            return f"{id} was told {theirs}, and its record says {mine}"
    return None


def _counts(usage: Usage) -> Usage:
    return Usage(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        cached_tokens=usage.cached_tokens,
    )


def _of_history(history: History) -> tuple[str, str | None, Usage]:
    return history.reason or "", history.error, _counts(history.usage)


def _of_row(row: UsageRecord) -> tuple[str, str | None, Usage]:
    counts = Usage(
        prompt_tokens=row.prompt_tokens, completion_tokens=row.completion_tokens, cached_tokens=row.cached_tokens
    )
    return row.finish_reason, row.error, counts

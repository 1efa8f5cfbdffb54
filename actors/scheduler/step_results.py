"""Applies a finished step: tokens to the logs, messages to the detokenizer, and the end of finished sequences. Pure."""

from typing import Final, NamedTuple

from ...protocol.events import FinishReason, TokenLogprob
from ...protocol.messages import ChoiceTokens
from ...protocol.reports import SchedulerTotals
from ...protocol.steps import Chunk, Row, Step, StepDone
from .beam_rounds import next_beams
from .live_table import LiveTable
from .sequence import LiveRequest, Sequence


class StepResults(NamedTuple):
    """The fields of `StepTokens`."""

    ids: list[str]
    rows: list[tuple[int, ...]]
    others: list[ChoiceTokens]


class Ending(NamedTuple):
    """How a sequence ends with a row. A stop token is generated but has no text."""

    reason: FinishReason
    generated: int = 0
    texts: int = 0  # tokens of the row that have text
    stop_reason: int | None = None


LENGTH: Final = Ending("length")
ERRORS: Final = {
    "nonfinite_logits": "No token can follow: the model gave no usable numbers.",
    "no_token_left": "No token can follow: allowed_token_ids, bad_words and logit_bias together forbid every token.",
    "grammar_failed": "No token continues this answer as its grammar demands, or the grammar has become too complex to "
    "follow; simplify the grammar, and use no allowed_token_ids, bad_words, logit_bias or stop_token_ids that forbid "
    "what it needs.",
}


def apply_step(step: Step, done: StepDone, table: LiveTable, totals: SchedulerTotals) -> StepResults:
    """Apply the rows of a step, in the order of its chunks."""
    ids, rows, others = results = StepResults([], [], [])
    sequences, generated = table.sequences, 0
    spent: dict[str, LiveRequest] = {}  # requests without credit
    for chunk, row in zip(step.chunks, done.rows, strict=True):
        assert chunk.sequence == row.sequence, "rows come in the order of the chunks"
        sequence = sequences.get(chunk.sequence)
        if sequence is None:
            totals.wasted_tokens += len(row.tokens)  # it ended while this step was in flight
            continue
        live = sequence.live
        if row.error:
            sequence.distrust_kv(table.pool)
            others.append(table.fail(live, row.error, ERRORS[row.error]))
            continue
        if sequence.pooled:
            others.append(ChoiceTokens(id=live.id, index=sequence.index, tokens=(), reason="stop", vector=row.vector))
            table.finish(sequence)
            continue
        if sequence.losses and chunk.sample:
            table.quarantine.survived(sequence)
        scored, tokens = not sequence.reads_prefix_cache, row.tokens
        if row.computed is not None:
            sequence.follow(chunk, row)
        if sequence.beams is not None:
            generated += len(tokens)
            others += next_beams(sequence, sequence.beams, row, table) if tokens else ()
            continue
        if scored:
            _keep_prompt_logprobs(sequence, chunk, row)
        if not chunk.sample:
            ending = _end_of_scoring(sequence, chunk)
        else:
            ending = append_tokens(sequence, tokens) if tokens or row.computed is None else None
        if ending:
            generated += ending.generated
            others.append(choice_tokens(sequence, tokens[: ending.texts], row.logprobs, ending))
            table.finish(sequence, len(sequence.generated) - ending.generated + ending.texts)
        elif tokens:
            generated += len(tokens)
            if scored or sequence.index or row.logprobs:
                others.append(choice_tokens(sequence, tokens, row.logprobs))
            else:
                ids.append(live.id)
                rows.append(tokens)
        if live.granted <= live.spent:
            spent[live.id] = live
    for live in spent.values():
        table.note_credit(live)
    totals.generated_tokens += generated
    return results


def append_tokens(sequence: Sequence, tokens: tuple[int, ...]) -> Ending | None:
    """Append sampled tokens to the log, up to the one that ends the sequence."""
    assert tokens, "a sampled row without a token"
    live, log, ending = sequence.live, sequence.generated, None
    room = sequence.max_total - sequence.prompt_tokens - len(log)
    if len(tokens) >= room:
        assert room > 0, f"a token behind the end of {sequence}"
        tokens, ending = tokens[:room], Ending("length", room, room)
    if not live.stop_set.isdisjoint(tokens):
        first = live.generate.sampling.min_tokens - len(log)  # place of the first token that may stop
        for place, token in enumerate(tokens):
            if place >= first and token in live.stop_set:
                tokens = tokens[: place + 1]
                ending = Ending("stop", place + 1, place, None if token in live.eos_token_ids else token)
                break
    log += tokens
    if len(tokens) > 1:  # one was counted when the row was planned
        sequence.total += len(tokens) - 1
        live.spent += len(tokens) - 1
    return ending


def _end_of_scoring(sequence: Sequence, chunk: Chunk) -> Ending | None:
    """The end of a prompt of which only the log probabilities are wanted."""
    whole = chunk.start + chunk.count == sequence.max_total - 1 and sequence.read == sequence.max_total
    return LENGTH if whole else None


def _keep_prompt_logprobs(sequence: Sequence, chunk: Chunk, row: Row) -> None:
    """Keep only new ones: a preempted prompt is computed, and scored, a second time."""
    fresh = row.prompt_logprobs[max(sequence.scored - (chunk.start + 1), 0) :]
    sequence.prompt_logprobs.extend(fresh)
    sequence.scored += len(fresh)


def choice_tokens(
    sequence: Sequence,
    tokens: tuple[int, ...] = (),
    logprobs: tuple[TokenLogprob, ...] = (),
    ending: Ending | None = None,
) -> ChoiceTokens:
    """The message to the detokenizer; the first one of a choice carries the prompt's log probabilities.

    A stop token is not among the tokens, but its log probabilities are among theirs: the last.
    """
    prompt_logprobs, sequence.prompt_logprobs = tuple(sequence.prompt_logprobs), []
    return ChoiceTokens(
        id=sequence.live.id,
        index=sequence.index,
        tokens=tokens,
        logprobs=logprobs[: ending.generated if ending else len(tokens)],
        prompt_logprobs=prompt_logprobs,
        reason=ending.reason if ending else None,
        stop_reason=ending.stop_reason if ending else None,
        stop_token=sequence.generated[-1] if ending and ending.reason == "stop" else None,
    )

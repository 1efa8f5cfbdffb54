"""What a finished row means for its sequence: which tokens are new, and whether they end it. Pure."""

from msgspec import Struct

from ...protocol.events import FinishReason, TokenLogprob
from ...protocol.messages import ChoiceTokens
from ...protocol.steps import Chunk, Row
from .sequence import Sequence


class Accepted(Struct, frozen=True, kw_only=True):
    """The result of a row. A stop token counts as `generated` but is not among `tokens`: it has no text."""

    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    generated: int = 0
    reason: FinishReason | None = None
    stop_reason: int | None = None


def accept_row(sequence: Sequence, chunk: Chunk, row: Row) -> Accepted:
    """Append the row's tokens to the log, up to the one that ends the sequence."""
    _take_prompt_logprobs(sequence, chunk, row)
    if not chunk.sample:
        whole = chunk.start + chunk.count == sequence.max_total - 1 and sequence.read == sequence.max_total
        return Accepted(reason="length" if whole else None)  # no token is wanted, only the prompt's probabilities
    assert row.tokens, "a sampled row without a token"
    sequence.losses = 0
    live, before = sequence.live, len(sequence.generated)
    reason: FinishReason | None = None
    stop_reason: int | None = None
    sent = 0
    for token in row.tokens:
        may_stop = len(sequence.generated) >= live.generate.sampling.min_tokens
        sequence.generated.append(token)
        if may_stop and token in live.stop_token_ids:
            reason = "stop"
            stop_reason = None if token in live.eos_token_ids else token
            break
        sent += 1
        if sequence.read >= sequence.max_total:
            reason = "length"
            break
    generated = len(sequence.generated) - before
    sequence.total += generated - 1  # one was counted when the row was planned
    live.spent += generated - 1
    return Accepted(
        tokens=row.tokens[:sent],
        logprobs=row.logprobs[:sent],
        generated=generated,
        reason=reason,
        stop_reason=stop_reason,
    )


def _take_prompt_logprobs(sequence: Sequence, chunk: Chunk, row: Row) -> None:
    """Keep only new ones: a preempted prompt is computed, and scored, a second time."""
    fresh = row.prompt_logprobs[max(sequence.scored - (chunk.start + 1), 0) :]
    sequence.prompt_logprobs.extend(fresh)
    sequence.scored += len(fresh)


def choice_tokens(sequence: Sequence, accepted: Accepted) -> ChoiceTokens:
    """The message to the detokenizer; the first one of a choice carries the prompt's log probabilities."""
    prompt_logprobs, sequence.prompt_logprobs = tuple(sequence.prompt_logprobs), []
    return ChoiceTokens(
        id=sequence.live.id,
        index=sequence.index,
        tokens=accepted.tokens,
        logprobs=accepted.logprobs,
        prompt_logprobs=prompt_logprobs,
        reason=accepted.reason,
        stop_reason=accepted.stop_reason,
    )

"""One round after another of a beam search, on the sequences that are its beams. Pure.

A beam that goes on with the token that the worker sampled for it is a sequence like any other. One that begins like
another beam takes a sequence that is free: that gets the beam's tokens and is computed from them, as after a
preemption. So a beam's full KV blocks are shared through the prefix cache, and its last block is computed again.
"""

from typing import Final

from ...protocol.messages import ChoiceTokens
from ...protocol.steps import Row
from .beams import Beam, BeamSearch
from .live_table import LiveTable
from .sequence import LiveRequest, Sequence

NOTHING: Final = Beam(0.0, ())  # of a choice that only widens the search


def next_beams(sequence: Sequence, search: BeamSearch, row: Row, table: LiveTable) -> list[ChoiceTokens]:
    """Take in a beam's next tokens. Returns the answers once they are found: nothing is known of them before."""
    live = sequence.live
    sequence.forget_unread()  # the token that was sampled is one of several candidates
    if not search.take(sequence.index, row):
        return []
    moves = search.next_round(sequence.max_total - sequence.prompt_tokens)
    for choice, beam, goes_on in moves:
        if goes_on:
            live.choices[choice].go_on(beam.tokens[-1].token_id)
        else:
            table.rewrite(live.choices[choice], [score.token_id for score in beam.tokens])
    return [] if moves else _end(live, search, table)


def _end(live: LiveRequest, search: BeamSearch, table: LiveTable) -> list[ChoiceTokens]:
    """Finish all choices of the search, the best answer's last: a request ends as its last choice does."""
    assert live.generate.beams is not None, live.id
    wanted, said = search.answers[: live.generate.beams.answers], list[ChoiceTokens]()
    for place, choice in reversed(tuple(enumerate(search.choices))):
        said.append(_answer(live, choice, wanted[place] if place < len(wanted) else NOTHING))
        table.finish(live.choices[choice])
    return said


def _answer(live: LiveRequest, choice: int, answer: Beam) -> ChoiceTokens:
    ids = tuple(score.token_id for score in answer.tokens)
    stop = ids[-1] if answer.stops else None
    return ChoiceTokens(
        id=live.id,
        index=choice,
        tokens=ids[:-1] if answer.stops else ids,
        logprobs=answer.tokens if live.generate.sampling.logprobs is not None else (),
        reason="stop" if answer.stops else "length",
        stop_reason=None if stop in live.eos_token_ids else stop,
        stop_token=stop,
    )

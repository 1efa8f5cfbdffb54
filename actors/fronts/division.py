"""Divides work among fronts: a step's texts by owner, and the places for requests into parts. Pure.

A request's id begins with the name of the process that accepted it (`name-number`), so no table of owners is needed.
"""

from collections.abc import Iterable
from functools import lru_cache

from msgspec import structs

from ...protocol.fronts import ChoiceOpened, ForFront
from ...protocol.messages import ChoiceTokens, DropRequest, OpenChoice, StepTokens, ToDetokenizer
from ...protocol.settings import KeySettings, LimitSettings


def owner(request_id: str) -> str:
    """The name of the process that accepted the request."""
    return request_id.rpartition("-")[0]


def divide(texts: Iterable[ToDetokenizer]) -> dict[str, list[ForFront]]:
    """The messages by front, each front's in their original order."""
    shares: dict[str, list[ForFront]] = {}
    for text in texts:
        if isinstance(text, StepTokens):  # nearly every token comes this way
            others: dict[str, list[ChoiceTokens]] = {}
            for choice in text.others:
                others.setdefault(owner(choice.id), []).append(choice)
            for name, (ids, places) in _owners(text.ids).items():
                rows = text.rows if len(ids) == len(text.ids) else tuple([text.rows[place] for place in places])
                own = tuple(others.pop(name, ()))
                shares.setdefault(name, []).append(StepTokens(ids=ids, rows=rows, others=own))
            for name, choices in others.items():
                shares.setdefault(name, []).append(StepTokens(others=tuple(choices)))
        elif isinstance(text, DropRequest):
            shares.setdefault(owner(text.id), []).append(text)
        else:
            shares.setdefault(owner(text.request.id), []).append(_opened(text))
    return shares


@lru_cache(maxsize=2)
def _owners(ids: tuple[str, ...]) -> dict[str, tuple[tuple[str, ...], list[int]]]:
    """Each owner's ids and their indices. Cached, since the same requests continue together for many steps."""
    places: dict[str, list[int]] = {}
    for place, id in enumerate(ids):
        places.setdefault(owner(id), []).append(place)
    if len(places) == 1:
        return {name: (ids, own) for name, own in places.items()}
    return {name: (tuple([ids[place] for place in own]), own) for name, own in places.items()}


def _opened(choice: OpenChoice) -> ChoiceOpened:
    return ChoiceOpened(id=choice.request.id, index=choice.index, cached_tokens=choice.cached_tokens)


def part_of(limits: LimitSettings, number: int, fronts: int) -> LimitSettings:
    """The limits of front `number` of `fronts`: its part of the places and of the memory for kept answers.

    The parts of the places add up to the whole.
    """
    places, rest = divmod(limits.max_requests, fronts)
    memory = limits.resume_memory // fronts
    return structs.replace(limits, max_requests=places + (number < rest), resume_memory=memory)


def keys_of(keys: Iterable[KeySettings], number: int, fronts: int) -> tuple[KeySettings, ...]:
    """The part of each key's limits that front `number` counts; a part is at least 1 where they are large enough.

    Batches' lines run in the scheduler's process, `number == fronts`: it has one more part of the tokens.
    """

    def part(limit: int | None, parts: int) -> int | None:
        return None if limit is None else limit // parts + (number < limit % parts)

    return tuple(
        structs.replace(
            key,
            requests_per_minute=part(key.requests_per_minute, fronts),
            tokens_per_minute=part(key.tokens_per_minute, fronts + 1),
            concurrent=part(key.concurrent, fronts),
        )
        for key in keys
    )

"""What goes to which front: a step's text by owner, and the places of the house in parts. Pure.

A request's id begins with the name of the process that took it (`name-number`), so nobody keeps a table of owners.
"""

from collections.abc import Iterable

from msgspec import structs

from ..protocol.fronts import ChoiceOpened, ForFront
from ..protocol.messages import ChoiceTokens, DropRequest, OpenChoice, StepText, ToDetokenizer
from ..protocol.settings import LimitSettings


def owner(request_id: str) -> str:
    """The name of the process that took the request."""
    return request_id.rpartition("-")[0]


def divide(texts: Iterable[ToDetokenizer]) -> dict[str, list[ForFront]]:
    """Every message to the front it belongs to, each front's in the order in which they were said."""
    shares: dict[str, list[ForFront]] = {}
    for text in texts:
        if isinstance(text, StepText):
            for name, choices in _by_owner(text.choices).items():
                whole = len(choices) == len(text.choices)
                shares.setdefault(name, []).append(text if whole else StepText(choices=tuple(choices)))
        elif isinstance(text, DropRequest):
            shares.setdefault(owner(text.id), []).append(text)
        else:
            shares.setdefault(owner(text.request.id), []).append(_opened(text))
    return shares


def _by_owner(choices: tuple[ChoiceTokens, ...]) -> dict[str, list[ChoiceTokens]]:
    parts: dict[str, list[ChoiceTokens]] = {}
    for choice in choices:  # every token of the house passes here
        name = choice.id.rpartition("-")[0]
        if (part := parts.get(name)) is None:
            part = parts[name] = []
        part.append(choice)
    return parts


def _opened(choice: OpenChoice) -> ChoiceOpened:
    return ChoiceOpened(id=choice.request.id, index=choice.index, cached_tokens=choice.cached_tokens)


def part_of(limits: LimitSettings, number: int, fronts: int) -> LimitSettings:
    """The limits of front `number` of `fronts`: its places for requests, so that all the parts are the whole."""
    places, rest = divmod(limits.max_requests, fronts)
    return structs.replace(limits, max_requests=places + (number < rest))

"""`truncation: auto`: the oldest turns of a conversation are left out until it fits into the context.

System turns at the beginning stay. It is cut before a turn of the user, so that no result loses its call.
"""

from typing import TYPE_CHECKING

from msgspec import structs

from ...protocol.errors import ApiError
from ...protocol.requests import ChatPrompt, Generate

if TYPE_CHECKING:
    from ...actors.observe.server import ModelEngine


async def truncate(engine: "ModelEngine", request: Generate, context_length: int) -> Generate:
    """The request with as much of its conversation as fits; if even the last turn does not, the engine refuses it."""
    (prompt,) = request.prompts
    assert isinstance(prompt, ChatPrompt)
    room = context_length - (request.max_tokens or 1)
    if await _fits(engine, prompt, room):
        return request
    turns = prompt.messages
    first = next((place for place, turn in enumerate(turns) if turn.role != "system"), len(turns))
    cuts = [first, *(place for place in range(first + 1, len(turns)) if turns[place].role == "user")]

    def cut(place: int) -> ChatPrompt:
        return structs.replace(prompt, messages=turns[:first] + turns[cuts[place] :])

    too_long, fits = 0, len(cuts) - 1  # the first is, and the last must do
    while fits - too_long > 1:
        middle = (too_long + fits) // 2
        if await _fits(engine, cut(middle), room):
            fits = middle
        else:
            too_long = middle
    return structs.replace(request, prompts=(cut(fits),))


async def _fits(engine: "ModelEngine", prompt: ChatPrompt, room: int) -> bool:
    try:
        return len(await engine.tokenize(prompt)) <= room
    except ApiError as error:
        if error.code != "context_length_exceeded":
            raise
        return False

"""The corpus: a deterministic stream of conversations, (seed, index) -> conversation.

A conversation is one task, or several in a row as in a chat, sometimes with a system message. The mix is a table. A few
are a story that only begins.
A task whose prompt is held out is skipped, so the overlap with the held-out set is zero by construction.
"""

# ruff: noqa: E501  (tables)

import hashlib
from collections.abc import Callable, Iterator, Mapping
from random import Random

from .tasks.arithmetic import add, compare, subtract
from .tasks.extract import extract
from .tasks.facts import facts
from .tasks.language import Conversation
from .tasks.lists import count, count_items, repeat, reverse, sort
from .tasks.memory import memory
from .tasks.paragraph import paragraph
from .tasks.smalltalk import cannot, small_talk
from .tasks.story import story
from .tasks.tools import tool_call, tool_result
from .tasks.units import convert

Family = Callable[[Random, bool], Conversation]
FAMILIES: Mapping[str, Family] = {
    "add": add, "subtract": subtract, "compare": compare, "sort": sort, "reverse": reverse, "count items": count_items, "count": count,
    "convert": convert, "paragraph": paragraph, "extract": extract, "tool call": tool_call, "tool result": tool_result,
    "memory": memory, "story": story, "small talk": small_talk, "cannot": cannot, "repeat": repeat, "facts": facts,
}  # fmt: skip

# Shares of conversations (not of tokens). Reading families are the slowest to learn; sums have the most digits.
MIX: Mapping[str, float] = {
    "add": 2.0, "subtract": 2.5, "compare": 5.5, "sort": 15.0, "reverse": 4.0, "count items": 5.0, "count": 2.5,
    "convert": 2.5, "paragraph": 3.0, "extract": 2.8, "tool call": 9.0, "tool result": 0.6,
    "memory": 2.4, "story": 0.5, "small talk": 2.8, "cannot": 0.7, "repeat": 3.5, "facts": 1.8,
}  # fmt: skip

SYSTEMS = (
    "You are a helpful assistant.", "You are a helpful assistant.", "You are a helpful AI assistant.", "You are Triolet's demo model.",
    "You are a friendly assistant. Answer briefly.", "Answer briefly.", "Be brief and polite.", "You are a careful assistant.",
    "You are a helpful, honest assistant.", "Answer the user's questions.", "Help the user.", "You are an assistant that answers in short sentences.",
)  # fmt: skip


def digest(prompt: Conversation) -> bytes:
    """Identifies the messages of one task so far, without the system message."""
    said = "\x1e".join(f"{role}\x1f{text}" for role, text in prompt if role != "system")
    return hashlib.blake2b(said.encode(), digest_size=12).digest()


STORY_SHARE = 0.02  # of the conversations are a story that only begins
OPENINGS = (
    "Once upon a time",
    "Once upon a time,",
    "Once upon a time...",
    "once upon a time",
    "Once upon a time there was",
)


def conversation(
    seed: int, index: int, kept_out: frozenset[bytes] = frozenset(), mix: Mapping[str, float] = MIX
) -> Conversation:
    """Conversation number `index` of the stream `seed`; if a task's prompt is held out, the next draw replaces it."""
    rng = Random(f"{seed}/{index}")
    if rng.random() < STORY_SHARE:
        told = story(rng, False)[-1]
        # Half of them without roles: what a completion goes on from.
        return [("text", told[1])] if rng.random() < 0.5 else [("user", rng.choice(OPENINGS)), told]
    names, shares = list(mix), list(mix.values())
    length = 1 if rng.random() < 0.65 else rng.randint(2, 8)
    turns: Conversation = []
    while length > 0:
        task = FAMILIES[rng.choices(names, shares)[0]](rng, False)
        if turns and task[0][0] == "system":
            continue  # a list of tools can only open a conversation
        if any(digest(task[:end]) in kept_out for end in range(1, len(task))):
            continue
        turns += task
        length -= 1
    if turns[0][0] != "system" and rng.random() < 0.25:
        turns.insert(0, ("system", rng.choice(SYSTEMS)))
    return turns


def stream(seed: int, start: int = 0, kept_out: frozenset[bytes] = frozenset()) -> Iterator[Conversation]:
    index = start
    while True:
        yield conversation(seed, index, kept_out)
        index += 1

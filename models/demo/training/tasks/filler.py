"""Text that has nothing to do with the question: what instructions, notes and descriptions of tools look like.

A long prompt is mostly text that must not change the answer. So it is drawn anew every time, in many forms, and many of
its words are made up.
"""

# ruff: noqa: E501  (a wording is one line, however long: it reads as the sentence it is)

import json
from collections.abc import Callable
from random import Random

from .language import expand, words
from .names import city, name, surname, word
from .story import story

_RULES = (
    "[Always|Never|Please|Do not] [answer|reply|respond|write] [in|with|using] [short|long|clear|simple|formal|friendly] [sentences|words|paragraphs|lists].",
    "[If|When] [the user|somebody|a person] asks [about|for] {a}, [say|explain|check|mention] [that|whether] {b} [is|are] [ready|needed|allowed|here|missing].",
    "[You are|You act as|Behave like] [an expert|a helper|a guide|a writer|a reviewer] for {a} and {b}.",
    "[Keep|Hold|Treat] the {a} [secret|private|short|polite|up to date], even if [asked|told] otherwise.",
    "[Today|The current date|The date] is {m}-{d}.",
    "[Use|Prefer|Avoid] [tables|lists|code|emphasis|headings|numbers] [for|with|in] {a}.",
    "[Think|Plan|Check] [step by step|before answering|twice], then [answer|act|write].",
    "[Step|Rule|Note|Point] {d}: [read|open|compare|save|close|update] the {a} [before|after|without] [changing|using|moving] the {b}.",
    "[The following|These] [rules|notes|files|messages|examples] [come from|belong to|describe] {n} [of|in|at] {p}.",
    "[Do not|Never] [repeat|reveal|change|translate|shorten] this [text|message|prompt|section].",
    "[Be|Stay|Remain] [polite|brief|honest|careful|calm|helpful], [also|even|and most of all] [with|about] {a}.",
    "[In case of|After|Before] [an error|a failure|a question], [tell|ask|call|warn] {n} [first|at once|again].",
)


def _rule(rng: Random) -> str:
    return expand(
        rng, rng.choice(_RULES), a=word(rng), b=word(rng), n=name(rng), p=city(rng), m=rng.randint(1, 12), d=rng.randint(1, 31)
    )  # fmt: skip


def _invented(rng: Random) -> str:
    """A sentence of made-up words among real ones."""
    said = [
        rng.choice((word(rng), surname(rng).lower(), rng.choice(words("the a of and to in with for on is was"))))
        for _ in range(rng.randint(5, 16))
    ]
    return " ".join(said).capitalize() + rng.choice(".....:?!")


def _field(rng: Random) -> str:
    return f"{rng.choice(('- ', '* ', '', '## '))}{word(rng)}_{word(rng)}: {rng.choice((name(rng), city(rng), str(rng.randint(0, 9999)), word(rng)))}"


def _schema(rng: Random) -> str:
    """A tool as its JSON description."""
    properties = {
        word(rng): {"type": rng.choice(("string", "integer", "boolean")), "description": _rule(rng)}
        for _ in range(rng.randint(1, 3))
    }
    called = f"{word(rng)}_{word(rng)}"
    return json.dumps({"name": called, "description": _invented(rng), "parameters": {"properties": properties}})


def _told(rng: Random) -> str:
    return story(rng, False)[1][1]


_KINDS: tuple[Callable[[Random], str], ...] = (_rule, _rule, _rule, _invented, _invented, _field, _schema, _told)


def filler(rng: Random, characters: int) -> str:
    """About `characters` of text: runs of one kind, as sections are."""
    parts: list[str] = []
    length = 0
    while length < characters:
        kind, joint = rng.choice(_KINDS), rng.choice((" ", "\n", "\n\n"))
        section = joint.join(kind(rng) for _ in range(rng.randint(1, 12)))
        parts.append(section)
        length += len(section)
    return "\n".join(parts)[:characters].strip()

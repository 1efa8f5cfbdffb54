"""Add, subtract and compare numbers of up to three digits. The answer restates the operands, which is what a small model copes with."""

# ruff: noqa: E501  (a wording is one line, however long: it reads as the sentence it is)

from random import Random

from .language import Conversation, Wordings, typed

ADD = Wordings(
    (
        "[What is|What's|How much is|Compute|Calculate|Tell me|Work out|Find|Solve|Evaluate] {a} [+|plus] {b}[?|.|]",
        "[Add|Sum|Please add|Can you add|Could you add] {a} [and|to|with] {b}[.|?|]",
        "{a} [+|plus] {b}[?| = ?| =|]",
        "{a}+{b}[?|=|=?|]",
        "[What is|Find|Give me|Tell me|Calculate] the [sum|total] of {a} and {b}[?|.|]",
        "[What do you get|What is the result] [when you add|if I add|of adding] {a} and {b}?",
        "I have {a} [and get|and find|plus] {b} more. How many [do I have|is that|in total]?",
        "[If I add {a} to {b}|When I add {a} and {b}], what [do I get|is the result]?",
    ),
    (
        "What does {a} plus {b} make?",
        "I want to know the sum of {a} and {b}.",
        "Could you work out {a} + {b} for me?",
        "How much do {a} and {b} make together?",
    ),
)
SUBTRACT = Wordings(
    (
        "[What is|What's|How much is|Compute|Calculate|Tell me|Work out|Find|Solve|Evaluate] {a} [-|minus] {b}[?|.|]",
        "[Subtract|Take|Please subtract|Can you subtract|Take away|Deduct] {b} from {a}[.|?|]",
        "{a} [-|minus] {b}[?| = ?| =|]",
        "{a}-{b}[?|=|=?|]",
        "[What is|Find|Give me|Tell me|Calculate] the difference [between|of] {a} and {b}[?|.|]",
        "[What do you get|What is the result] [when you subtract|if I take|of subtracting] {b} from {a}?",
        "I have {a} and [give away|lose|spend] {b}. How many [do I have left|are left|remain]?",
        "[If I take {b} from {a}|When I subtract {b} from {a}], what [do I get|is left|remains]?",
    ),
    (
        "What does {a} minus {b} make?",
        "I want to know the difference between {a} and {b}.",
        "Could you work out {a} - {b} for me?",
        "How much is left of {a} if I take away {b}?",
    ),
)
LARGER = Wordings(
    (
        "Which [number |one |]is [larger|bigger|greater|higher][,|:] {a} or {b}?",
        "[What is|Find|Tell me|Give me] the [larger|bigger|greater] [number |one |]of {a} and {b}[?|.|]",
        "Is {a} or {b} [larger|bigger|greater]?",
    ),
    ("Which of {a} and {b} is the [larger|bigger] number?", "Between {a} and {b}, which is [bigger|greater]?"),
)
SMALLER = Wordings(
    (
        "Which [number |one |]is [smaller|less|lower][,|:] {a} or {b}?",
        "[What is|Find|Tell me|Give me] the [smaller|lesser|lower] [number |one |]of {a} and {b}[?|.|]",
        "Is {a} or {b} [smaller|less]?",
    ),
    ("Which of {a} and {b} is the [smaller|lower] number?", "Between {a} and {b}, which is [smaller|less]?"),
)


def _pair(rng: Random) -> tuple[int, int]:
    # Sums of a few digits are easy; half of the draws have three, where the carries are.
    return tuple(rng.randrange(10 ** rng.choice((1, 2, 2, 3, 3, 3))) for _ in range(2))  # type: ignore[return-value]


def add(rng: Random, unseen: bool) -> Conversation:
    a, b = _pair(rng)
    return [("user", typed(rng, ADD.say(rng, unseen, a=a, b=b), True)), ("assistant", f"{a} + {b} = {a + b}.")]


def subtract(rng: Random, unseen: bool) -> Conversation:
    a, b = _pair(rng)
    if a < b and rng.random() < 0.9:
        a, b = b, a
    wordings = SUBTRACT if a >= b else Wordings(SUBTRACT.trained[:5], SUBTRACT.unseen[:3])
    return [("user", typed(rng, wordings.say(rng, unseen, a=a, b=b), True)), ("assistant", f"{a} - {b} = {a - b}.")]


def compare(rng: Random, unseen: bool) -> Conversation:
    a, b = _pair(rng)
    if a == b:
        b += 1
    larger = rng.random() < 0.5
    low, high = sorted((a, b))
    answer = f"{high} is larger than {low}." if larger else f"{low} is smaller than {high}."
    return [
        ("user", typed(rng, (LARGER if larger else SMALLER).say(rng, unseen, a=a, b=b), True)),
        ("assistant", answer),
    ]

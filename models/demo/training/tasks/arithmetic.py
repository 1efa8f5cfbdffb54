"""Add, subtract and compare numbers of up to three digits. Sums are worked out in the answer, column by column."""

# ruff: noqa: E501  (a wording is one line, however long: it reads as the sentence it is)

from random import Random

from .language import Conversation, Wordings, asked

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
        "[I need|I would like|I'd like|I want] the [sum|total] of {a} and {b}[.|]",
        "[I need|I want|I have] to [add|sum up|know] {a} [and|plus] {b}[.|]",
        "[How much|What] [is|are] {a} and {b} [in total|added up|combined|added together]?",
        "[Can you|Could you|Please|Would you|Can you please] [compute|calculate|solve|find|tell me|do] {a} [+|plus] {b}[?|.|]",
        "{a} [+|plus] {b} [is|equals|gives|is equal to][ what|][?|]",
        "What [does|do] {a} and {b} [give|add up to|sum to]?",
        "There [are|were] {a} [birds|cars|people|books] and {b} more [come|came|arrive]. How many are there[ now|]?",
        "[My|The] [homework|question|exercise] [is|says]:[ what is|] {a} [+|plus] {b}[?|.|]",
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
        "[I need|I would like|I'd like|I want] the difference [between|of] {a} and {b}[.|]",
        "[I need|I want|I have] to [subtract|take|take away] {b} from {a}[.|]",
        "[Can you|Could you|Please|Would you|Can you please] [compute|calculate|solve|find|tell me|do] {a} [-|minus] {b}[?|.|]",
        "{a} [-|minus] {b} [is|equals|gives|is equal to][ what|][?|]",
        "How much is {a} [less|without] {b}?",
        "What [remains|is left] [of|from] {a} [when|after] {b} [is|are] [gone|removed|spent]?",
        "There [are|were] {a} [birds|cars|people|books] and {b} [leave|left|go away]. How many are [there|left][ now|]?",
        "[My|The] [homework|question|exercise] [is|says]:[ what is|] {a} [-|minus] {b}[?|.|]",
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
        "[Which|What] is [more|larger|bigger|greater][,|:] {a} or {b}?",
        "Compare {a} and {b}[.|:] [Which|which] [one |number |]is [larger|bigger|greater]?",
        "[Of|Out of] {a} and {b}, [which|what] [one |number |]is the [larger|bigger|greater|higher][ one|]?",
        "{a} or {b}[:|,] [which|what] [one |]is [larger|bigger|more|greater]?",
        "[Pick|Name|Choose|Say] the [larger|bigger|greater] [one |number |][of|out of] {a} and {b}[.|]",
        "[Can you|Could you] tell me [which|what] is [larger|bigger|greater][,|:] {a} or {b}?",
    ),
    ("Which of {a} and {b} is the [larger|bigger] number?", "Between {a} and {b}, which is [bigger|greater]?"),
)
SMALLER = Wordings(
    (
        "Which [number |one |]is [smaller|less|lower][,|:] {a} or {b}?",
        "[What is|Find|Tell me|Give me] the [smaller|lesser|lower] [number |one |]of {a} and {b}[?|.|]",
        "Is {a} or {b} [smaller|less]?",
        "[Which|What] is [less|smaller|lower][,|:] {a} or {b}?",
        "Compare {a} and {b}[.|:] [Which|which] [one |number |]is [smaller|lower]?",
        "[Of|Out of] {a} and {b}, [which|what] [one |number |]is the [smaller|lower|lesser][ one|]?",
        "{a} or {b}[:|,] [which|what] [one |]is [smaller|less|lower]?",
        "[Pick|Name|Choose|Say] the [smaller|lower] [one |number |][of|out of] {a} and {b}[.|]",
        "[Can you|Could you] tell me [which|what] is [smaller|less|lower][,|:] {a} or {b}?",
    ),
    ("Which of {a} and {b} is the [smaller|lower] number?", "Between {a} and {b}, which is [smaller|less]?"),
)


def _pair(rng: Random) -> tuple[int, int]:
    # Half of the draws have three digits, where the carries are.
    return rng.randrange(10 ** rng.choice((1, 2, 2, 3, 3, 3))), rng.randrange(10 ** rng.choice((1, 2, 2, 3, 3, 3)))


def sum_text(a: int, b: int) -> str:
    """The sum, worked out column by column from the ones: each step needs two digits and a carry, and no more."""
    if max(a, b) < 10:
        return f"{a} + {b} = {a + b}."
    steps: list[str] = []
    carry = 0
    for x, y in _columns(a, b):
        steps.append(f"{x} + {y}{' + 1' if carry else ''} = {x + y + carry}")
        carry = int(x + y + carry > 9)
    return f"{a} + {b}: {', '.join(steps)}. The sum is {a + b}."


def difference_text(a: int, b: int) -> str:
    """a minus a smaller b, column by column from the ones; a column that borrows shows ten more."""
    if max(a, b) < 10:
        return f"{a} - {b} = {a - b}."
    steps: list[str] = []
    borrowed = 0
    for x, y in _columns(a, b):
        top = x + 10 if x < y + borrowed else x
        steps.append(f"{top} - {y}{' - 1' if borrowed else ''} = {top - y - borrowed}")
        borrowed = int(top > 9)
    return f"{a} - {b}: {', '.join(steps)}. The difference is {a - b}."


def _columns(a: int, b: int) -> list[tuple[int, int]]:
    """The digits of both numbers in pairs, ones first; a missing digit is 0."""
    width = max(len(str(a)), len(str(b)))
    return [(a // 10**place % 10, b // 10**place % 10) for place in range(width)]


def add(rng: Random, unseen: bool) -> Conversation:
    a, b = _pair(rng)
    return asked(rng, ADD.say(rng, unseen, a=a, b=b), sum_text(a, b), True)


def subtract(rng: Random, unseen: bool) -> Conversation:
    b, a = sorted(_pair(rng))
    return asked(rng, SUBTRACT.say(rng, unseen, a=a, b=b), difference_text(a, b), True)


def compare(rng: Random, unseen: bool) -> Conversation:
    a, b = _pair(rng)
    if a == b:
        b += 1
    larger = rng.random() < 0.5
    low, high = sorted((a, b))
    answer = f"{high} is larger than {low}." if larger else f"{low} is smaller than {high}."
    return asked(rng, (LARGER if larger else SMALLER).say(rng, unseen, a=a, b=b), answer, True)

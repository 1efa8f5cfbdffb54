"""Convert units in both directions, with whole-number results."""

# ruff: noqa: E501  (a wording is one line, however long: it reads as the sentence it is)

from random import Random

from .language import Conversation, Wordings, asked

UNITS = (
    ("meters", "centimeters", 100), ("kilometers", "meters", 1000), ("centimeters", "millimeters", 10),
    ("hours", "minutes", 60), ("minutes", "seconds", 60), ("days", "hours", 24), ("weeks", "days", 7), ("years", "months", 12),
    ("kilograms", "grams", 1000), ("tons", "kilograms", 1000), ("liters", "milliliters", 1000), ("feet", "inches", 12),
    ("yards", "feet", 3), ("pounds", "ounces", 16), ("dollars", "cents", 100), ("euros", "cents", 100), ("dozens", "pieces", 12),
)  # fmt: skip
SINGULAR = {"feet": "foot", "inches": "inch", "centuries": "century"}
CONVERT = Wordings(
    (
        "How many {to} are [in|there in] {n} {unit}?",
        "[Convert|Please convert|Can you convert|Change|Turn] {n} {unit} [to|into] {to}[.|?|]",
        "{n} {unit} [in|to|into] {to}[?|]",
        "[What is|What's|How much is] {n} {unit} in {to}?",
        "[Express|Write|Give me] {n} {unit} in {to}[.|]",
        "How many {to} [is|are|do I get from] {n} {unit}?",
        "[Tell me|I need to know] how many {to} {n} {unit} [is|are][.|]",
        "[There are|I need|It takes|This is] {n} {unit}. [How much|What] is that in {to}?",
        "[Can you|Could you|Would you|Please] [express|give me|write|say] {n} {unit} in {to}[?|.|]",
        "{n} {unit} [is|are|make|equal] how much in {to}?",
        "[I want|I'd like|I need] {n} {unit} in {to}[.|]",
        "[I want|I need] to [convert|change|turn] {n} {unit} [to|into] {to}[.|]",
        "How much is {n} {unit}, in {to}?",
    ),
    (
        "I have {n} {unit}. How many {to} is that?",
        "Could you tell me how many {to} there are in {n} {unit}?",
        "{n} {unit} equals how many {to}?",
    ),
)


def named(n: int, unit: str) -> str:
    return f"{n} {SINGULAR.get(unit, unit[:-1]) if n == 1 else unit}"


def convert(rng: Random, unseen: bool) -> Conversation:
    large, small, factor = rng.choice(UNITS)
    n = rng.randint(1, 200 if factor % 10 == 0 and factor != 60 else 20)
    if factor == 1000:
        n = min(n, 99)
    n, unit, result, to = (n, large, n * factor, small) if rng.random() < 0.7 else (n * factor, small, n, large)
    text = CONVERT.say(rng, unseen, n=n, unit=named(n, unit).split()[1], to=to)
    return asked(rng, text, f"{named(n, unit)} = {named(result, to)}.", True)

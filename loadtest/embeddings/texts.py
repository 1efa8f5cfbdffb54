"""Texts of mixed lengths, for measurements: the same words for the same seed."""

import random
from typing import Final

_WORDS: Final = """order invoice refund kettle river mountain music theory engine window paper garden winter market
doctor letter server memory kernel thread vector matrix search answer question language city history island bridge
number"""
SHORT, LONG = 4, 180  # words


def mixed_texts(count: int, seed: int = 1) -> list[str]:
    """Most are short, as queries and sentences are, some long, as passages: log-uniform in words."""
    draw, words = random.Random(seed), _WORDS.split()
    return [
        " ".join(draw.choices(words, k=round(SHORT * (LONG / SHORT) ** draw.random()))).capitalize() + "."
        for _ in range(count)
    ]

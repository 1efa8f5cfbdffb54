"""Prompts of about a given number of tokens, for a server whose tokenizer is not known.

Text is common English words. Two probes with `usage.prompt_tokens` show how many tokens a word takes and how many a
template adds. Without usage, a word counts as 1.3 tokens. Each record keeps the prompt length that the server
reported. Words are drawn per request, so that the prefix cache does not help unless the run asks for it.
"""

from random import Random
from typing import Final

from msgspec import Struct

_TEXT: Final = (
    "time year people way day man thing woman life child world school state family student group country problem hand "
    "part place case week company system program question work number night point home water room mother area money "
    "story fact month lot right study book eye job word business issue side kind head house service friend father "
    "power hour game line end member law car city name team minute idea body back parent face level office door health "
    "person art war history party result change morning reason research girl guy moment air teacher force education"
)
WORDS: Final = tuple(_TEXT.split())


class TokensPerWord(Struct, frozen=True):
    """tokens = overhead + slope · words, for this server."""

    slope: float = 1.3
    overhead: float = 0.0

    def words_for(self, tokens: int) -> int:
        return max(1, round((tokens - self.overhead) / self.slope))


def from_probes(few: tuple[int, int | None], many: tuple[int, int | None]) -> TokensPerWord:
    """Each probe is (words sent, prompt tokens the server counted). Without counts the default stays."""
    if few[1] is None or many[1] is None or many[0] == few[0]:
        return TokensPerWord()
    slope = (many[1] - few[1]) / (many[0] - few[0])
    if slope <= 0:
        return TokensPerWord()
    return TokensPerWord(slope, few[1] - slope * few[0])


def text_of(words: int, draw: Random) -> str:
    return " ".join(draw.choices(WORDS, k=words))

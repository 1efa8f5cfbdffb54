"""What every process that compiles grammars must agree on: llguidance's view of a checkpoint's tokenizer, and limits.

The front's compiler accepts a grammar within these limits, so the worker, which compiles it again, stays within them.
They count work, not time: the same on every machine.
"""

from pathlib import Path
from typing import Final

from llguidance import LLParserLimits, LLTokenizer

from ..errors import CheckpointError, is_failure
from .text.text_files import tokenizer_json

# Deep grammars recurse in C: the front's compiler has this stack, and a thread that compiles in the worker needs more.
COMPILER_STACK: Final = 4 << 20  # bytes
LIMITS: Final = LLParserLimits(
    initial_lexer_fuel=1_000_000,  # some 20 ms of regular expressions
    step_lexer_fuel=100_000,  # 7 ms for a mask
    # 8 ms for a mask of a grammar so ambiguous that each item costs more than the last (s: s s | "a" | "b" | "ab"; with
    # 4,000 it is 50 ms), and few ms for others. A schema with 100 optional fields of four types each needs some 1,500.
    step_max_items=2_000,
    # 0.7 kB each; one answer with texts of 4,000 characters takes up to 10,000. Full lexers: models/guides/matcher.py.
    max_lexer_states=40_000,
    max_grammar_size=500_000,  # symbols
    verbose_errors=False,  # an error is told to its client, who does not need the parser's state
)


def open_grammar_tokenizer(model: str, vocab_size: int, eos_token_ids: tuple[int, ...]) -> LLTokenizer:
    """The tokenizer of a folder or GGUF file, whose masks have `vocab_size` bits. Raises CheckpointError."""
    text = tokenizer_json(Path(model))
    try:
        return LLTokenizer(text, n_vocab=vocab_size, eos_token=list(eos_token_ids) or None)
    except BaseException as error:  # the library raises plain ValueError, and others for what it did not foresee
        if not is_failure(error):
            raise
        raise CheckpointError("tokenizer", model, f"cannot be used with grammars ({str(error)[:200]})") from None

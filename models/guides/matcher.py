"""SharedMatcher: follows a grammar with the lexer that all answers of the grammar share, as long as that has room.

The lexer of `llguidance` adds states as it meets new text, up to a limit, and copies of a matcher share it: states of
all answers add up, and behind the limit every copy fails. Then an answer goes on with a lexer of its own. Only one that
fills a lexer alone fails.
"""

from collections.abc import Callable
from typing import Final

from llguidance import LLMatcher

FULL: Final = "too many states"  # in the error of the library


class SharedMatcher:
    """One sequence's matcher, with the calls of `guide.Matcher`."""

    __slots__ = ("_consumed", "_matcher", "_renew")

    def __init__(self, matcher: LLMatcher, renew: Callable[[], LLMatcher]) -> None:
        """`renew` makes one in the first state, whose lexer nobody shares."""
        self._matcher = matcher
        self._renew: Callable[[], LLMatcher] | None = renew  # None: this is such a one
        self._consumed: list[int] = []

    def consume_token(self, sampled_token: int) -> bool:
        self._consumed.append(sampled_token)
        return self._matcher.consume_token(sampled_token) or self._renewed()

    def consume_tokens(self, sampled_tokens: list[int]) -> bool:
        self._consumed += sampled_tokens
        return self._matcher.consume_tokens(sampled_tokens) or self._renewed()

    def compute_ff_tokens(self) -> list[int]:
        forced = self._matcher.compute_ff_tokens()
        return self._matcher.compute_ff_tokens() if not forced and self._renewed() else forced

    def unsafe_compute_mask_ptr(self, trg_pointer: int, trg_byte_size: int) -> None:
        self._matcher.unsafe_compute_mask_ptr(trg_pointer, trg_byte_size)
        if self._matcher.is_error() and self._renewed():
            self._matcher.unsafe_compute_mask_ptr(trg_pointer, trg_byte_size)

    def is_stopped(self) -> bool:
        return self._matcher.is_stopped()

    def is_error(self) -> bool:
        return self._matcher.is_error()

    def _renewed(self) -> bool:
        """Whether the lexer was full, and another one has now taken all that was consumed."""
        if self._renew is None or FULL not in self._matcher.get_error():
            return False
        self._matcher, self._renew = self._renew(), None
        return self._matcher.consume_tokens(self._consumed)

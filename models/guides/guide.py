"""Guide: what the next token of one answer may be. First thoughts, which are free, then what the grammar describes.

Whether the model thinks it decides itself, by its first token, unless the prompt ended inside the thoughts.

It takes every token of the answer, says which tokens are forced behind it, and fills the mask of the next one. Forced
are: what the grammar alone allows, the end of the answer behind a complete match, and the end of the thoughts when
their budget is spent. It knows neither batches nor devices.

A grammar that a token breaks, that grows too complex or that leaves no token is `failed`: the sequence ends with an
error. `llguidance` never raises for these; its matcher enters an error state. Should it raise all the same, that fails
the one answer too, and not the worker.
"""

import logging
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Final, Literal, Protocol

import numpy as np

from ...kernels.sampling.rows import Uint32Array, mask_words
from ...protocol.requests import Thinking
from ...protocol.steps import MAX_FORCED

_LOG: Final = logging.getLogger("triolet.grammars")
ALL_TOKENS: Final = np.uint32(0xFFFFFFFF)


class Matcher(Protocol):
    """The part of `llguidance.LLMatcher` that a guide uses. All calls release the GIL."""

    def consume_token(self, sampled_token: int) -> bool: ...
    def compute_ff_tokens(self) -> list[int]: ...
    def unsafe_compute_mask_ptr(self, trg_pointer: int, trg_byte_size: int) -> None: ...
    def is_stopped(self) -> bool: ...
    def is_error(self) -> bool: ...


class Thoughts:
    """Where an answer is in its thoughts, from its tokens alone."""

    __slots__ = ("_begin", "_begun", "_budget", "_completes", "_end", "_recent", "_spent", "place")

    def __init__(self, thinking: Thinking | None, budget: int | None, *, completes: bool) -> None:
        """`completes`: an answer that begins like the mark must go on like it, as nothing else may begin so."""
        self._begin: tuple[int, ...] = thinking.begin if thinking else ()
        self._end: tuple[int, ...] = thinking.end if thinking else ()
        self._budget = budget
        self._completes = completes
        self._begun = 0  # tokens of the beginning mark so far
        self._spent = 0  # tokens of the thoughts
        self._recent: tuple[int, ...] = ()  # the last ones, as many as the end mark has
        self.place: Literal["before", "inside", "over"] = "over"
        if thinking and self._end:  # thoughts that nothing ends would never let the grammar begin
            self.place = "inside" if thinking.open else "before" if self._begin else "over"

    def take(self, token: int) -> bool:
        """The answer's next token; returns whether it belongs to the thoughts and their marks."""
        if self.place == "over":
            return False
        if self.place == "before":
            if token != self._begin[self._begun]:
                self.place = "over"
                return False
            self._begun += 1
            if self._begun == len(self._begin):
                self.place = "inside"
            return True
        self._spent += 1
        self._recent = (*self._recent, token)[-len(self._end) :]
        if self._recent == self._end:
            self.place = "over"
        return True

    def forced(self) -> tuple[int, ...]:
        """The rest of a mark: of the beginning, once the model has begun it, and of the end when no budget is left."""
        if self.place == "before":
            return self._begin[self._begun :] if self._begun and self._completes else ()
        if self.place == "inside" and self._budget is not None and self._spent >= self._budget:
            return self._end[self._end_begun() :]
        return ()

    def _end_begun(self) -> int:
        """How many tokens of the end mark the model has just written itself."""
        sizes = range(len(self._end) - 1, 0, -1)
        return next((size for size in sizes if self._recent[-size:] == self._end[:size]), 0)

    @property
    def first(self) -> int | None:
        """The token by which the answer may begin to think, instead of what the grammar allows."""
        return self._begin[0] if self.place == "before" and not self._begun else None


class Guide:
    """One answer's guide. One thread at a time uses it."""

    __slots__ = ("_ended", "_eos", "_jumps", "_matcher", "_thoughts", "failed", "mask", "masked", "ready")

    def __init__(
        self,
        matcher: Matcher | None,
        thinking: Thinking | None,
        budget: int | None,
        *,
        eos: Sequence[int],
        vocab_size: int,
        jumps: bool,
        answer: Sequence[int] = (),
    ) -> None:
        """`answer`: its tokens so far. `matcher` None: only the thoughts are guided. `eos` ends an answer."""
        self._matcher = matcher
        self._thoughts = Thoughts(thinking, budget, completes=matcher is not None)
        self._eos = tuple(eos)
        self._jumps = jumps  # whether forced tokens follow at once; otherwise the mask allows only the next of them
        self._ended = False
        self.failed = False
        self.mask: Uint32Array = np.zeros(mask_words(vocab_size), np.uint32)  # of the next token, one bit per token
        self.ready = False  # it is filled
        self.masked = False  # it forbids something; otherwise it is not filled in
        with self._failing_alone():
            for token in answer:
                self._take(token)

    def take(self, token: int) -> tuple[int, ...]:
        """The token that was sampled; returns those that are forced behind it, which it takes too."""
        self.ready = False
        forced: list[int] = []
        with self._failing_alone():
            self._take(token)
            while self._jumps and len(forced) < MAX_FORCED and (more := self._forced()):
                for following in more[: MAX_FORCED - len(forced)]:
                    self._take(following)
                    forced.append(following)
        return tuple(forced)

    def fill(self) -> None:
        """Fill the mask of the next token."""
        mask, self.masked = self.mask, False
        with self._failing_alone():
            self.masked = self._fill(mask)
            if (self._matcher is not None and self._matcher.is_error()) or (self.masked and not mask.any()):
                self.failed = True
        self.ready = True

    @contextmanager
    def _failing_alone(self) -> Generator[None, None, None]:
        """What the matcher raises makes this guide `failed`, and goes no further."""
        try:
            yield
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # a panic in Rust is no Exception
            _LOG.exception("following a grammar failed")
            self.failed = True

    @property
    def over(self) -> bool:
        """Whether it will neither force nor forbid anything any more."""
        return self._matcher is None and self._thoughts.place == "over"

    def _take(self, token: int) -> None:
        if self.failed or self._ended or self._thoughts.take(token):
            return
        if token in self._eos and (self._matcher is None or self._matcher.is_stopped()):
            self._ended = True
        elif self._matcher is not None and not self._matcher.consume_token(token):
            self.failed = True
        else:
            self._ended = token in self._eos

    def _forced(self) -> Sequence[int]:
        if self.failed or self._ended:
            return ()
        if self._thoughts.place != "over":
            return self._thoughts.forced()
        if self._matcher is None:
            return ()
        return self._eos[:1] if self._matcher.is_stopped() else self._matcher.compute_ff_tokens()

    def _fill(self, mask: Uint32Array) -> bool:
        if self.failed or self._ended:
            return False
        first = self._thoughts.first
        if self._thoughts.place != "over" and first is None:
            return self._fill_within_thoughts(mask)
        if self._matcher is None:
            return False
        if self._matcher.is_stopped():
            return _only(mask, self._eos[0])
        self._matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        if first is not None:
            _allow(mask, first)
        return True

    def _fill_within_thoughts(self, mask: Uint32Array) -> bool:
        """Thoughts are free, but what the grammar describes must follow: the answer cannot end with them."""
        if forced := self._thoughts.forced():
            return _only(mask, forced[0])
        if self._matcher is None:
            return False
        mask[:] = ALL_TOKENS
        for token in self._eos:
            mask[token // 32] &= ~np.uint32(1 << (token % 32))
        return True


def _only(mask: Uint32Array, token: int) -> bool:
    mask[:] = 0
    _allow(mask, token)
    return True


def _allow(mask: Uint32Array, token: int) -> None:
    mask[token // 32] |= np.uint32(1 << (token % 32))

"""Guide: what the next token of one answer may be. First thoughts, which are free, then what the grammar describes.

Whether the model thinks it decides itself, by its first token, unless the prompt ended inside the thoughts.

It takes every token of the answer, says which tokens are forced behind it, and fills the mask of the next one. Forced
are: what the grammar alone allows, the end of the answer behind a complete match, and the end of the thoughts when
their budget is spent. It knows neither batches nor devices.

A grammar that a token breaks or that grows too complex is `failed`: the sequence ends with an error. One that leaves no
token has an empty mask, which the sampler reports. `llguidance` never raises for these; its matcher enters an error
state. Should it raise all the same, that fails the one answer too, and not the worker.
"""

import logging
from collections import deque
from collections.abc import Sequence
from typing import Final, Protocol

import numpy as np

from ...kernels.sampling.rows import Uint32Array, mask_words
from ...protocol.requests import Thinking
from ...protocol.steps import MAX_FORCED
from .thoughts import Thoughts

_LOG: Final = logging.getLogger("triolet.grammars")
ALL_TOKENS: Final = np.uint32(0xFFFFFFFF)


class Matcher(Protocol):
    """The part of `llguidance.LLMatcher` that a guide uses. All calls release the GIL."""

    def consume_token(self, sampled_token: int) -> bool: ...
    def consume_tokens(self, sampled_tokens: list[int]) -> bool: ...
    def compute_ff_tokens(self) -> list[int]: ...
    def unsafe_compute_mask_ptr(self, trg_pointer: int, trg_byte_size: int) -> None: ...
    def is_stopped(self) -> bool: ...
    def is_error(self) -> bool: ...


class Guide:
    """One answer's guide. One thread at a time uses it."""

    __slots__ = (
        "_address", "_due", "_ended", "_eos", "_jumps", "_matcher", "_sampled", "_thoughts", "failed", "mask", "masked",
        "ready",
    )  # fmt: skip

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
        self._due: deque[int] = deque()  # forced tokens that the matcher has taken, and the answer has not yet
        self._sampled: list[int] = []  # tokens that nothing follows at once: `fill` takes them, beside the model
        self._ended = False
        self.failed = False
        self.ready = False  # the mask is filled
        self.masked = False  # it forbids something; otherwise it is not filled in
        self.write_into(np.zeros(mask_words(vocab_size), np.uint32))
        try:
            for token in answer:
                self._take(token)
        except BaseException as error:
            self._fail_alone(error)

    def write_into(self, mask: Uint32Array) -> None:
        """From now on fill this memory: one bit per token, for the next token."""
        self.mask = mask
        self._address = mask.ctypes.data  # kept, since asking for it takes as long as some masks
        self.ready = False

    def take(self, token: int) -> tuple[int, ...]:
        """The token that was sampled; returns those that are forced behind it, which it takes too."""
        self.ready = False
        if not self._jumps:
            self._sampled.append(token)
            return ()
        forced: list[int] = []
        try:
            self._take(token)
            while len(forced) < MAX_FORCED and (more := self._forced()):
                for following in more[: MAX_FORCED - len(forced)]:
                    self._take(following)
                    forced.append(following)
        except BaseException as error:
            self._fail_alone(error)
        return tuple(forced)

    def fill(self) -> None:
        """Fill the mask of the next token, behind all that were taken."""
        self.masked = False
        try:
            for token in self._sampled:
                self._take(token)
            self._sampled.clear()
            self.masked = self._fill(self.mask)
        except BaseException as error:
            self._fail_alone(error)
        self.ready = True

    def _fail_alone(self, error: BaseException) -> None:
        """What the matcher raises makes this guide `failed`, and goes no further. A panic in Rust is no Exception."""
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise error
        _LOG.error("following a grammar failed", exc_info=error)
        self.failed = True

    @property
    def over(self) -> bool:
        """Whether it will neither force nor forbid anything any more."""
        return self._matcher is None and self._thoughts.place == "over"

    def _take(self, token: int) -> None:
        if self.failed or self._ended:
            return
        if self._due:
            self.failed = self._due.popleft() != token
            self._ended = token in self._eos
        elif self._thoughts.place != "over" and self._thoughts.take(token):
            return
        elif token in self._eos and (self._matcher is None or self._matcher.is_stopped()):
            self._ended = True
        elif self._matcher is not None and not self._matcher.consume_token(token):
            self.failed = True
        else:
            self._ended = token in self._eos

    def _forced(self) -> Sequence[int]:
        """The tokens that must come next, as far as they are known now."""
        if self.failed or self._ended:
            return ()
        if self._thoughts.place != "over":
            return self._thoughts.forced()
        if self._matcher is None:
            return ()
        if not self._due:
            self._look_ahead(self._matcher)
        return tuple(self._due)

    def _look_ahead(self, matcher: Matcher) -> None:
        """Let the matcher take what it allows only one continuation for.

        To find these tokens it spells out the forced text, which takes longer than many masks: once, not for each.
        """
        if matcher.is_stopped():
            self._due.append(self._eos[0])
        elif forced := matcher.compute_ff_tokens():
            self.failed = not matcher.consume_tokens(forced)
            self._due.extend(forced)

    def _fill(self, mask: Uint32Array) -> bool:
        if self.failed or self._ended:
            return False
        if self._due:
            return _only(mask, self._due[0])
        first = self._thoughts.first
        if self._thoughts.place != "over" and first is None:
            return self._fill_within_thoughts(mask)
        matcher = self._matcher
        if matcher is None:
            return False
        if matcher.is_stopped():
            self.failed = matcher.is_error()
            return _only(mask, self._eos[0])
        matcher.unsafe_compute_mask_ptr(self._address, mask.nbytes)
        if matcher.is_error():
            self.failed = True
        elif first is not None:
            _allow(mask, first)
        elif np.count_nonzero(mask) == 1:  # perhaps one token only
            self._look_ahead(matcher)
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
    mask[token // 32] = 1 << (token % 32)
    return True


def _allow(mask: Uint32Array, token: int) -> None:
    mask[token // 32] |= np.uint32(1 << (token % 32))

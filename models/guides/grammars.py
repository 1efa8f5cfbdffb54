"""GrammarStore: builds grammars in a thread of their own, and gives every sequence a guide.

Building takes a millisecond as a rule, and up to a second for what the limits allow. It releases the GIL, and what
takes long gets a low priority, so the steps of other requests go on meanwhile. The front's compiler has accepted the
grammar within the same limits. A built grammar is a matcher in its first state; a sequence gets a copy, which shares
the lexer's tables as long as these have room (`matcher.py`). Which grammars are kept, the front decides.

The tokenizer of `llguidance` is made while the model is loaded. Making it holds the GIL: 1.9 s for 100,000 tokens, in
which no stream would get one.
"""

import logging
import queue
import threading
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from llguidance import LLMatcher, LLTokenizer

from ...protocol.steps import GrammarFailed, GrammarReady, PrepareGrammar, SequenceRecord
from ..checkpoint.grammar import COMPILER_STACK, LIMITS, open_grammar_tokenizer
from ..checkpoint.open import Checkpoint
from ..errors import CheckpointError
from ..low_priority import at_low_priority
from .guide import Guide
from .matcher import SharedMatcher

Answer = Callable[[GrammarReady | GrammarFailed], None]
_Job = tuple[PrepareGrammar, Answer | None]  # None: of a grammar whose lexer is full
_LOG: Final = logging.getLogger("triolet.grammars")


class _Built(NamedTuple):
    text: str
    matcher: LLMatcher


class GrammarStore:
    """One per worker. `prepare` and `guide` are called by the step thread. Without a tokenizer it builds no grammar."""

    def __init__(
        self,
        tokenizer: LLTokenizer | None,
        eos_token_ids: tuple[int, ...],
        vocab_size: int,
        *,
        jump_ahead: bool = True,
        problem: str = "This worker has no tokenizer to build a grammar with.",
    ) -> None:
        """`problem`: why there is no tokenizer, if there is none."""
        self._tokenizer = tokenizer
        self._problem = problem
        self._eos = eos_token_ids
        self._vocab_size = vocab_size
        self._jump_ahead = jump_ahead
        self._built: dict[int, _Built] = {}
        self._full = set[int]()  # those that are built anew for the next sequences
        self._jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None  # started by the first grammar

    def prepare(self, order: PrepareGrammar, answer: Answer) -> None:
        """Build a grammar in the other thread, which calls `answer`."""
        if self._thread is None:  # a daemon: the worker may exit in the middle of a grammar
            self._thread = threading.Thread(target=self._build_all, name="triolet-grammar", daemon=True)
            self._thread.start()
        self._jobs.put((order, answer))

    def guide(self, record: SequenceRecord) -> Guide | None:
        """The guide of a sequence that has arrived, or come back; None if its answer is free."""
        budget = record.reasoning_budget if record.thinking else None
        if not record.grammar and budget is None:
            return None
        # A forced token has no logits, which log probabilities need, and nothing would see that the request forbids it.
        sampling = record.sampling
        forbids = bool(sampling.allowed_tokens or sampling.bad_words)
        jumps = self._jump_ahead and sampling.logprobs is None and not forbids
        return Guide(
            self._copy(record.grammar) if record.grammar else None,
            record.thinking,
            budget,
            eos=self._eos,
            vocab_size=self._vocab_size,
            jumps=jumps,
            answer=record.tokens[record.prompt_tokens :],
        )

    def _copy(self, number: int) -> SharedMatcher:
        built = self._built[number]
        return SharedMatcher(built.matcher.deep_copy(), partial(self._renew, number, built))

    def _renew(self, number: int, full: _Built) -> LLMatcher:
        """For a sequence in the middle of its answer, which waits for it. Those that begin later share another one."""
        if self._built.get(number) is full and number not in self._full:
            self._full.add(number)
            self._jobs.put((PrepareGrammar(grammar=number, text=full.text), None))
        return at_low_priority(partial(self._compiled, full.text), stack=2 * COMPILER_STACK)

    def _build_all(self) -> None:
        while True:
            order, answer = self._jobs.get()
            for number in order.forget:  # here, since one of them may have been under way
                self._built.pop(number, None)
            if answer is None and order.grammar not in self._built:
                continue
            try:
                result = at_low_priority(partial(self._build, order), stack=2 * COMPILER_STACK)
            except BaseException as error:  # a panic in Rust is no Exception; all that wait would wait for ever
                _LOG.exception("building grammar %d failed", order.grammar)
                message = f"The grammar of the answer cannot be built: {type(error).__name__}"
                result = GrammarFailed(grammar=order.grammar, message=message)
            self._full.discard(order.grammar)
            if answer is not None:
                answer(result)

    def _build(self, order: PrepareGrammar) -> GrammarReady | GrammarFailed:
        if self._tokenizer is None:
            return GrammarFailed(grammar=order.grammar, message=self._problem)
        matcher = self._compiled(order.text)
        if matcher.is_error():
            message = f"The grammar of the answer cannot be built: {matcher.get_error()[:500]}"
            return GrammarFailed(grammar=order.grammar, message=message)
        matcher.compute_bitmask()  # builds tables that all copies share
        if matcher.is_error():
            message = f"The grammar of the answer cannot be followed: {matcher.get_error()[:500]}"
            return GrammarFailed(grammar=order.grammar, message=message)
        self._built[order.grammar] = _Built(order.text, matcher)
        return GrammarReady(grammar=order.grammar)

    def _compiled(self, text: str) -> LLMatcher:
        assert self._tokenizer is not None
        return LLMatcher(self._tokenizer, text, log_level=0, limits=LIMITS)


def load_grammars(checkpoint: Checkpoint, *, jump_ahead: bool) -> GrammarStore:
    """The store of a checkpoint. Without a tokenizer that fits, the model is served all the same, without grammars.

    Masks have the size of the model's vocabulary, which may be padded beyond the tokenizer's.
    """
    eos, vocab_size = checkpoint.generation.eos_token_ids, checkpoint.spec.vocab_size
    if not eos:
        problem = "The model's files name no end-of-sequence token, so no answer could end where its grammar does."
        return GrammarStore(None, eos, vocab_size, jump_ahead=jump_ahead, problem=problem)
    try:
        tokenizer = open_grammar_tokenizer(str(checkpoint.path), vocab_size, eos)
    except CheckpointError as error:
        _LOG.warning("answers cannot follow grammars: %s", error)
        problem = f"Answers cannot follow grammars with this model: {error}"
        return GrammarStore(None, eos, vocab_size, jump_ahead=jump_ahead, problem=problem)
    return GrammarStore(tokenizer, eos, vocab_size, jump_ahead=jump_ahead)

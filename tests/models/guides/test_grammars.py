"""The worker's store of grammars: what cannot be built, what raises, and lexers that fill up."""

import random
from typing import Any

import pytest
from llguidance import LLMatcher, LLParserLimits

from triolet.models.checkpoint.open import Checkpoint
from triolet.models.guides import grammars
from triolet.models.guides.grammars import GrammarStore, load_grammars
from triolet.models.guides.guide import Guide
from triolet.protocol.sampling import Sampling
from triolet.protocol.steps import GrammarFailed, GrammarReady, SequenceRecord

from .bench import PROMPT, SIGN, Bench, Panic, allowed


def test_answers_that_fill_the_shared_lexer_go_on_with_their_own(
    bench: Bench, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers one after another, and one that runs beside all of them: each meets new text, and none fails."""
    monkeypatch.setattr(grammars, "LIMITS", LLParserLimits(max_lexer_states=1500))
    store, renewed = load_grammars(checkpoint, jump_ahead=True), list[int]()
    renew = GrammarStore._renew

    def noted(self: GrammarStore, number: int, full: Any) -> Any:  # Any: what a store has built
        renewed.append(number)
        return renew(self, number, full)

    monkeypatch.setattr(GrammarStore, "_renew", noted)
    text = LLMatcher.grammar_from_json_schema('{"type": "string", "maxLength": 4000}')
    assert bench.prepare(1, text, store=store) == GrammarReady(grammar=1)
    rng = random.Random(7)
    record = SequenceRecord(
        sequence=1, tokens=PROMPT, prompt_tokens=len(PROMPT), sampling=Sampling(), stop_token_ids=bench.eos, grammar=1
    )

    def follow(guide: Guide, tokens: tuple[int, ...]) -> None:
        for token in tokens:
            assert token in (allowed(guide) or ())
            guide.take(token)
            assert not guide.failed

    def words() -> str:
        return "".join(rng.choice("abcdefgh ") for _ in range(150))

    long = store.guide(record)
    assert long is not None
    follow(long, bench.ids('"' + words()))
    for _ in range(12):
        guide = store.guide(record)
        assert guide is not None
        follow(guide, bench.ids(f'"{words()}"'))
    follow(long, bench.ids(words() + '"'))
    assert renewed, "the lexer was never full"
    assert len(renewed) < 12
    alone = store.guide(record)
    assert alone is not None
    for token in bench.ids('"' + "".join(words() for _ in range(20))):
        alone.take(token)
        alone.fill()
    assert alone.failed  # it fills a lexer by itself


def test_grammars_that_cannot_be_built_say_why(bench: Bench, checkpoint: Checkpoint) -> None:
    store = bench.stores[True]
    failed = bench.prepare(7, "start: (((", store=store)
    assert isinstance(failed, GrammarFailed)
    assert failed.message.startswith("The grammar of the answer cannot be built: ")
    failed = bench.prepare(8, SIGN, store=GrammarStore(None, (), 2048))
    assert isinstance(failed, GrammarFailed)
    assert "no tokenizer" in failed.message


def test_a_grammar_with_too_many_parses_at_once_is_refused(bench: Bench) -> None:
    def text(rules: int) -> str:
        names = [f"r{number}" for number in range(rules)]
        lines = [f'{name}: "a" {name} "b" | "{name}"' for name in names]
        return LLMatcher.grammar_from_lark("\n".join(["start: " + " | ".join(names), *lines]))

    store = bench.stores[True]
    assert isinstance(bench.prepare(30, text(500), 30, store=store), GrammarReady)
    failed = bench.prepare(30, text(2500), 30, store=store)
    assert isinstance(failed, GrammarFailed)
    assert "Too many items" in failed.message


@pytest.mark.parametrize("error", [TypeError("no"), Panic()])
def test_a_builder_that_raises_fails_the_grammar_and_builds_the_next(
    checkpoint: Checkpoint, bench: Bench, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def build(*_args: object, **_options: object) -> LLMatcher:
        raise error

    store = load_grammars(checkpoint, jump_ahead=True)
    with monkeypatch.context() as patched:
        patched.setattr("triolet.models.guides.grammars.LLMatcher", build)
        failed = bench.prepare(1, SIGN, store=store)
    assert isinstance(failed, GrammarFailed)
    assert failed.message == f"The grammar of the answer cannot be built: {type(error).__name__}"
    assert bench.prepare(2, SIGN, store=store) == GrammarReady(grammar=2)


def test_forgotten_grammars_are_gone(bench: Bench) -> None:
    store = bench.stores[True]
    bench.prepare(20, SIGN, store=store)
    bench.prepare(21, SIGN, 20, store=store)
    assert 20 not in store._built
    assert 21 in store._built

"""The grammars of the speed benchmark are what it says they are."""

from pathlib import Path

from triolet.loadtest.structured.speed import DEMO, SCHEMAS, grammar_of, slow_schema
from triolet.models.checkpoint.open import open_checkpoint
from triolet.models.guides.grammars import load_grammars


def test_every_slow_schema_is_another_one() -> None:
    assert len({slow_schema(number) for number in range(5)}) == 5


def test_answers_of_the_schemas_are_never_complete_before_they_are_full() -> None:
    assert all(schema["minItems"] >= 100 for schema in SCHEMAS.values())
    assert all(grammar_of(schema) for schema in SCHEMAS.values())
    assert load_grammars(open_checkpoint(Path(DEMO)), jump_ahead=True)

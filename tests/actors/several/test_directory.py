"""Names, aliases and the order of use."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triolet.actors.several.directory import Directory, NamedModel
from triolet.protocol.errors import ApiError

MODELS = ("a", "b", "c")


def test_a_model_is_found_by_its_name_its_alias_and_as_ollama_spells_them() -> None:
    directory = Directory(MODELS, {"chat": "b"})
    assert directory.find("c") == NamedModel("c", "c")
    assert directory.find("chat") == NamedModel("chat", "b")
    assert directory.find("chat:latest") == NamedModel("chat", "b")
    assert directory.find(None) == NamedModel("a", "a")
    assert directory.find("gone", ("lost", "chat", "c")) == NamedModel("chat", "b")
    assert directory.names == ["a", "b", "c", "chat"]


@pytest.mark.parametrize("name", ["", "d", "A", "a:", "a:legal", ":latest", "chat:", "\x00", "a/b", "a" * 10_000])
def test_other_names_are_refused_with_those_that_are_there(name: str) -> None:
    with pytest.raises(ApiError) as refused:
        Directory(MODELS, {"chat": "b"}).find(name, ("e",))
    assert refused.value.code == "model_not_found"
    assert "'a', 'b', 'c', 'chat'" in refused.value.message
    assert len(refused.value.message) < 300


def test_an_alias_may_move_and_go_but_hides_no_model() -> None:
    directory = Directory(MODELS, {"chat": "b"})
    directory.set_alias("chat", "c")
    assert directory.find("chat").model == "c"
    for alias, model, code in (
        ("a", "b", "invalid_value"),
        ("x:y", "b", "invalid_value"),
        ("x", "d", "model_not_found"),
    ):
        with pytest.raises(ApiError) as refused:
            directory.set_alias(alias, model)
        assert refused.value.code == code
    directory.remove_alias("chat")
    for gone in (directory.find, directory.remove_alias):
        with pytest.raises(ApiError):
            gone("chat")


@given(st.lists(st.sampled_from(MODELS)))
def test_the_longest_unused_model_is_first(uses: list[str]) -> None:
    directory = Directory(MODELS)
    for model in uses:
        directory.used(model)
    last = {model: index for index, model in enumerate([*MODELS, *uses])}
    assert [*directory.by_use] == sorted(MODELS, key=last.__getitem__)

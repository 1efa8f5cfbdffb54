"""What each model gets of the machine."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triolet.actors.several.parts import DoesNotFitTogether, divide, to_unload
from triolet.protocol.settings import EngineSettings, ModelSettings, ServeSettings
from triolet.protocol.steps import ModelNeeds

BLOCK = 64


def settings_of(count: int, threads: int | None = None, memory: int | None = None) -> ServeSettings:
    models = tuple(ModelSettings(name=f"m{number}", path=f"folder/{number}") for number in range(count))
    engine = EngineSettings(model="folder/0", threads=threads)
    return ServeSettings(engine=engine, models=models, port=1, memory=memory)


def need(fixed: int, least: int, most: int) -> ModelNeeds:
    return ModelNeeds(
        fixed_bytes=fixed,
        kv_block_bytes=BLOCK,
        kv_least_bytes=least * BLOCK,
        kv_most_bytes=max(least, most) * BLOCK,
        context_length=max(least, most) * 64,
    )


needs = st.lists(
    st.builds(need, st.integers(1, 10_000), st.integers(1, 20), st.integers(1, 100)), min_size=1, max_size=6
)


@given(st.integers(1, 64), st.integers(1, 8), st.none() | st.integers(1, 64))
def test_the_cores_are_divided_and_no_model_is_without(cores: int, count: int, threads: int | None) -> None:
    whole = settings_of(count, threads)
    parts = divide(whole, cores)
    assert [*parts.settings] == parts.at_start == [model.name for model in whole.models]
    each = [part.engine.threads or 0 for part in parts.settings.values()]
    assert min(each) >= 1
    assert sum(each) <= max(threads or cores, count)
    assert sum(each) + count > (threads or cores)  # less than a thread of each is left over
    for model, part in zip(whole.models, parts.settings.values(), strict=True):
        assert (part.engine.model, part.served_model_name, part.models, part.port) == (model.path, model.name, (), 1)


@given(needs, st.integers(1, 50_000), st.integers(1, 16))
def test_what_is_loaded_at_the_start_fits_and_so_does_each_alone(
    each: list[ModelNeeds], budget: int, cores: int
) -> None:
    least = [one.fixed_bytes + one.kv_least_bytes for one in each]
    settings = settings_of(len(each), memory=budget)
    if max(least) > budget:
        with pytest.raises(DoesNotFitTogether, match=f"m{next(i for i, size in enumerate(least) if size > budget)} "):
            divide(settings, cores, each)
        return
    parts = divide(settings, cores, each)
    for name, one in zip(parts.settings, each, strict=True):
        cache = parts.settings[name].engine.kv_cache_memory
        assert cache is not None
        assert one.kv_least_bytes <= cache <= one.kv_most_bytes
        assert parts.sizes[name] == one.fixed_bytes + cache <= budget
        assert parts.context_lengths[name] <= one.context_length
    used = sum(parts.sizes[name] for name in parts.at_start)
    assert used <= budget
    assert parts.at_start[0] == "m0"
    left_out = [name for name in parts.sizes if name not in parts.at_start]
    assert all(parts.sizes[name] > budget - used for name in left_out)  # none was left out for nothing
    threads = [parts.settings[name].engine.threads or 0 for name in parts.at_start]
    assert sum(threads) <= max(cores, len(threads))


def test_all_that_fit_together_share_what_is_left() -> None:
    parts = divide(settings_of(2, memory=10_000), 2, [need(3_000, 1, 1_000), need(1_000, 1, 1_000)])
    assert sum(parts.sizes.values()) == 10_000
    assert parts.sizes["m0"] == 3_000 + 1_500 + 3_000


@given(st.integers(0, 100), st.integers(1, 300), st.dictionaries(st.text(max_size=3), st.integers(0, 60), max_size=6))
def test_no_more_is_unloaded_than_must_be(wanted: int, budget: int, loaded: dict[str, int]) -> None:
    gone = to_unload(wanted, budget, loaded.items())
    assert gone == [*loaded][: len(gone)]

    def free(without: list[str]) -> int:
        return budget - sum(size for model, size in loaded.items() if model not in without)

    if gone:
        assert free(gone[:-1]) < wanted
    assert free(gone) >= wanted or len(gone) == len(loaded)

"""What each model gets of the machine."""

from hypothesis import given
from hypothesis import strategies as st

from triolet.actors.several.parts import settings_of_each
from triolet.protocol.settings import EngineSettings, ModelSettings, ServeSettings


@given(st.integers(1, 64), st.integers(1, 8), st.none() | st.integers(1, 64))
def test_the_cores_are_divided_and_no_model_is_without(cores: int, count: int, threads: int | None) -> None:
    models = tuple(ModelSettings(name=f"m{number}", path=f"folder/{number}") for number in range(count))
    whole = ServeSettings(engine=EngineSettings(model="folder/0", threads=threads), models=models, port=1)
    parts = settings_of_each(whole, cores)
    assert [*parts] == [model.name for model in models]
    each = [part.engine.threads or 0 for part in parts.values()]
    assert min(each) >= 1
    assert sum(each) <= max(threads or cores, count)
    assert (sum(each) + count) > (threads or cores)  # less than a thread of each is left over
    for model, part in zip(models, parts.values(), strict=True):
        assert (part.engine.model, part.served_model_name, part.models, part.port) == (model.path, model.name, (), 1)

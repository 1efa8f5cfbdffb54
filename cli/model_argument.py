"""MODEL of the commands that serve: one model, or several with the names that clients use for them."""

from pathlib import Path
from typing import Any

import click

from ..protocol.settings import ModelSettings
from .sources import ModelArgument

GivenModel = str | tuple[ModelSettings, ...] | None


class ModelsArgument(ModelArgument):
    """`MODEL`, or `NAME=MODEL` once for each model."""

    def __init__(self) -> None:
        super().__init__(nargs=-1, type=click.Path(), metavar="[MODEL | NAME=MODEL...]", callback=read_models)

    def value_from_envvar(self, ctx: click.Context) -> Any:  # Any: as click has it
        """One path, which may have spaces, or several models with spaces between them."""
        text = self.resolve_envvar_value(ctx)
        if text is None:
            return None
        words = text.split()
        return words if all(map(_named, words)) else [text]


def read_models(_ctx: click.Context, parameter: click.Parameter, words: tuple[str, ...]) -> GivenModel:
    """Raises BadParameter for several that have no names, or one name twice."""
    if not words:
        return None
    found = [_named(word) for word in words]
    models = tuple(model for model in found if model is not None)
    if not models and len(words) == 1:
        return words[0]
    for word, model in zip(words, found, strict=True):
        if model is None:
            raise click.BadParameter(f"{word}: of several models each has a name, as in a={word}", param=parameter)
        if not model.name.strip() or ":" in model.name:
            raise click.BadParameter(f"{word}: {model.name!r} is no name; a name has no colon", param=parameter)
        if sum(other.name == model.name for other in models) > 1:
            raise click.BadParameter(f"{word}: two models have the name {model.name}", param=parameter)
    return models


def _named(word: str) -> ModelSettings | None:
    """A path may hold an equals sign too: then there is such a folder, or a slash before it."""
    name, equals, path = word.partition("=")
    if not equals or not path or "/" in name or Path(word).exists():
        return None
    return ModelSettings(name=name, path=path)

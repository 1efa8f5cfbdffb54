"""The models of a server: their names, aliases and states, and which of them was not used for longest. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ...protocol.errors import ApiError, model_not_found
from ...protocol.served_models import LATEST, ModelState


class NamedModel(NamedTuple):
    """A model, and the name that it was found by: its own or an alias."""

    called: str
    model: str


class Directory:
    """At first no model is loaded. Whoever loads and unloads them says so with `move`."""

    def __init__(self, models: Sequence[str], aliases: Mapping[str, str] | None = None) -> None:
        self.states: dict[str, ModelState] = dict.fromkeys(models, "unloaded")
        self.reasons: dict[str, str] = {}  # of those that failed
        self.aliases: dict[str, str] = {}
        self.by_use = dict.fromkeys(models)  # the one that was used last is the last
        for alias, model in (aliases or {}).items():
            self.set_alias(alias, model)

    @property
    def names(self) -> list[str]:
        """Of the models, in the order in which they were given, then the aliases."""
        return [*self.states, *self.aliases]

    def model_of(self, name: str) -> str | None:
        return name if name in self.states else self.aliases.get(name)

    def find(self, name: str | None, fallbacks: Iterable[str] = ()) -> NamedModel:
        """The first of these names that is there; without a name the first model. Raises ApiError (404)."""
        if name is None:
            first = next(iter(self.states))
            return NamedModel(first, first)
        for called in (name, *fallbacks):
            for spelt in (called, called.removesuffix(LATEST)):
                if (model := self.model_of(spelt)) is not None:
                    return NamedModel(spelt, model)
        raise model_not_found(name, self.names)

    def set_alias(self, alias: str, model: str) -> None:
        """Give a model another name, or an alias another model. Raises ApiError: 404 for it, 400 for the name."""
        if model not in self.states:
            raise model_not_found(model, [*self.states])
        if alias in self.states:
            raise ApiError("invalid_value", f"alias: {alias!r} is the name of a model.", param="alias")
        if not alias.strip() or ":" in alias:
            raise ApiError("invalid_value", f"alias: {alias!r} is no name; a name has no colon.", param="alias")
        self.aliases[alias] = model

    def remove_alias(self, alias: str) -> None:
        """Raises ApiError (404)."""
        if self.aliases.pop(alias, None) is None:
            raise ApiError("not_found", f"There is no alias {alias!r}.", param="alias")

    def move(self, model: str, state: ModelState, reason: str = "") -> None:
        self.states[model] = state
        self.reasons[model] = reason

    def used(self, model: str) -> None:
        """A request used it now."""
        del self.by_use[model]
        self.by_use[model] = None

"""Typed reading of a `config.json`: every value is checked for type and range when it is read.

Absent and null mean the same, except for keys that a family gives a default. Knows nothing about families or the
meaning of keys.
"""

from collections.abc import Mapping
from math import isfinite
from typing import TypeVar

from msgspec import ValidationError, convert

from ..errors import CheckpointError, UnsupportedModel

MAX_LAYERS = 4096  # the largest models have some 130; each layer is an object before any weight is looked for
LARGEST_SIZE = 2**31 - 1  # token ids and tensor shapes are int32 in the kernels
SMALLEST, LARGEST = 1e-30, 1e30  # numbers but 0: kernels have them in float32, and families square and divide them
_SIZES = f", of a size from {SMALLEST:g} to {LARGEST:g}"
Value = TypeVar("Value")


class Config:
    """A mapping from config.json, or one nested in it (`prefix` is for messages), with typed getters."""

    def __init__(self, values: Mapping[str, object], prefix: str = "") -> None:
        self.values = values
        self.prefix = prefix

    def invalid(self, key: str, remedy: str) -> CheckpointError:
        """An error to raise: the value makes no sense."""
        return CheckpointError(self.prefix + key, self.values.get(key), remedy)

    def unsupported(self, key: str, remedy: str) -> UnsupportedModel:
        """An error to raise: the value makes sense, but is not supported."""
        return UnsupportedModel(self.prefix + key, self.values.get(key), remedy)

    def with_defaults(self, **defaults: object) -> "Config":
        """The same with values for keys that are absent; null stays null."""
        return Config({**defaults, **self.values}, self.prefix)

    def has(self, key: str) -> bool:
        return self.values.get(key) is not None

    def size(self, key: str, default: int | None = None, *, most: int = LARGEST_SIZE) -> int:
        """A positive integer."""
        return self.whole(key, default, least=1, most=most)

    def whole(self, key: str, default: int | None = None, *, least: int = 0, most: int = LARGEST_SIZE) -> int:
        """An integer from `least` to `most`."""
        remedy = f"expected an integer from {least} to {most}"
        value = self._read(key, int, default, remedy)
        if not least <= value <= most:
            raise self.invalid(key, remedy)
        return value

    def number(self, key: str, default: float | None = None, *, above: float = 0.0) -> float:
        """A number greater than `above`, of a magnitude that models have."""
        remedy = f"expected a number greater than {above:g}" if isfinite(above) else "expected a number"
        value = self._read(key, float, default, remedy)
        if not _usual(value) or value <= above:
            raise self.invalid(key, remedy + _SIZES)
        return value

    def numbers(self, key: str) -> list[float]:
        """Numbers greater than 0, at least one."""
        values = self._read(key, list[float])
        if not values or not all(_usual(value) and value > 0 for value in values):
            raise self.invalid(key, "expected numbers greater than 0" + _SIZES)
        return values

    def optional_size(self, key: str) -> int | None:
        return self.size(key) if self.has(key) else None

    def optional_number(self, key: str) -> float | None:
        return self.number(key) if self.has(key) else None

    def flag(self, key: str, default: bool) -> bool:
        return self._read(key, bool, default, "expected true or false")

    def text(self, key: str, default: str | None = None) -> str:
        return self._read(key, str, default, "expected a string")

    def texts(self, key: str) -> list[str] | None:
        return self._read(key, list[str]) if self.has(key) else None

    def wholes(self, key: str) -> list[int] | None:
        return self._read(key, list[int]) if self.has(key) else None

    def mapping(self, key: str) -> "Config | None":
        return Config(self._read(key, dict[str, object]), f"{self.prefix}{key}.") if self.has(key) else None

    def _read(self, key: str, kind: type[Value], default: Value | None = None, remedy: str | None = None) -> Value:
        """`remedy` None: the text of msgspec's error."""
        value = self.values.get(key)
        if value is None and default is not None:
            return default
        try:
            return convert(value, kind)
        except ValidationError as error:
            raise self.invalid(key, remedy or str(error)) from None

    def must_be(self, key: str, *allowed: object, remedy: str) -> None:
        """Refuse any value but these; absent and null are fine."""
        value = self.values.get(key)
        if value is not None and not any(value == item and type(value) is type(item) for item in allowed):
            raise self.unsupported(key, remedy)


def _usual(value: float) -> bool:
    """Not for NaN and infinities either."""
    return value == 0 or SMALLEST <= abs(value) <= LARGEST

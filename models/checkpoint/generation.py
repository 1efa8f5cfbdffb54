"""`generation_config.json`: which tokens end a sequence, and the sampling defaults the model's authors chose."""

from math import inf
from pathlib import Path

from msgspec import Struct, ValidationError, convert

from .config import Config
from .files import find_file, read_json

MAX_GENERATION_BYTES = 1 << 20
# key: (least value, greatest value); the ranges are those of a request's own parameters
RANGES: dict[str, tuple[float, float]] = {
    "temperature": (0.0, 100.0),
    "top_p": (1e-9, 1.0),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (1e-9, 100.0),
    "top_k": (0, 2**31 - 1),
    "max_new_tokens": (1, 2**31 - 1),
}
INTEGERS = {"top_k", "max_new_tokens"}


class GenerationDefaults(Struct, frozen=True, kw_only=True):
    """Defaults of a request. `sampling` has only the keys present in the file."""

    eos_token_ids: tuple[int, ...] = ()
    sampling: dict[str, float | int] = {}


def read_generation(folder: Path, vocab_size: int) -> GenerationDefaults:
    """End-of-sequence ids come from config.json if generation_config.json has none.

    `do_sample: false` without a temperature means greedy decoding, as in transformers.
    """
    config = Config(read_json(folder, "config.json", 4 << 20))
    if find_file(folder, "generation_config.json") is None:
        return GenerationDefaults(eos_token_ids=eos_of(config, vocab_size))
    generation = Config(read_json(folder, "generation_config.json", MAX_GENERATION_BYTES), "generation_config.")
    sampling = sampling_of(generation)
    if not generation.flag("do_sample", False) and generation.has("do_sample"):
        sampling["temperature"] = 0
    eos = eos_of(generation, vocab_size) if generation.has("eos_token_id") else eos_of(config, vocab_size)
    return GenerationDefaults(eos_token_ids=eos, sampling=sampling)


def sampling_of(generation: Config) -> dict[str, float | int]:
    """The defaults among the settings; each is checked."""
    return {key: _default(generation, key) for key in RANGES if generation.has(key)}


def _default(generation: Config, key: str) -> float | int:
    value = generation.number(key, above=-inf)
    least, greatest = RANGES[key]
    if not least <= value <= greatest or (key in INTEGERS and not value.is_integer()):
        raise generation.invalid(key, f"expected a value from {least:g} to {greatest:g}")
    return int(value) if key in INTEGERS else value


def eos_of(config: Config, vocab_size: int) -> tuple[int, ...]:
    """One id or a list of them."""
    value = config.values.get("eos_token_id")
    try:
        ids: int | list[int] | None = convert(value, int | list[int] | None)
    except ValidationError as error:
        raise config.invalid("eos_token_id", str(error)) from None
    listed = [] if ids is None else ids if isinstance(ids, list) else [ids]
    if any(not 0 <= item < vocab_size for item in listed):
        raise config.invalid("eos_token_id", f"expected token ids below vocab_size = {vocab_size}")
    return tuple(dict.fromkeys(listed))

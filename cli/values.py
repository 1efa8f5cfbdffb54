"""Parses values from the command line or a config file: sizes like `2GiB`, keys like `@keys.txt`."""

import re
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import click

_UNITS: Final = {
    "": 1, "b": 1,
    "k": 2**10, "kib": 2**10, "kb": 10**3,
    "m": 2**20, "mib": 2**20, "mb": 10**6,
    "g": 2**30, "gib": 2**30, "gb": 10**9,
    "t": 2**40, "tib": 2**40, "tb": 10**12,
}  # fmt: skip


def parse_size(text: str) -> int:
    """Bytes in `4096`, `512MiB`, `1.5 GiB` or `2GB`; a bare `G` is a GiB. Raises ValueError."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    if match is None or match[2].lower() not in _UNITS:
        raise ValueError(f"{text!r} is not a size; write it as 2GiB, 512MiB or a number of bytes")
    return int(float(match[1]) * _UNITS[match[2].lower()])


def format_size(size: int) -> str:
    """The inverse of `parse_size`, to three digits: `1.50 GiB`."""
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= factor:
            value = size / factor
            return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f} {unit}"
    return f"{size} B"


class SizeType(click.ParamType[int]):
    """A number of bytes, at least one."""

    name = "size"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            size = value if isinstance(value, int) else parse_size(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if size < 1:
            self.fail(f"{value!r} must be at least one byte", param, ctx)
        return size


class ShareOrSizeType(click.ParamType[float]):
    """A share up to 1, such as `0.9`, or a size in bytes."""

    name = "share or size"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if re.fullmatch(r"\s*[01]?(\.\d*)?\s*", text := str(value)) and re.search(r"\d", text):
            if 0 < float(text) <= 1:
                return float(text)
            self.fail(f"{value!r} must be a share above 0 and up to 1, such as 0.9, or a size", param, ctx)
        return float(SIZE.convert(value, param, ctx))


class HttpUrlType(click.ParamType[str]):
    """The address of a server."""

    name = "url"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            url = urlsplit(str(value))
            valid = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
        except ValueError:  # the port is not a number
            valid = False
        if not valid:
            self.fail(f"{value!r} is not a URL of http or https, such as http://127.0.0.1:4318", param, ctx)
        return str(value)


HTTP_URL: Final = HttpUrlType()
SIZE: Final = SizeType()
SHARE_OR_SIZE: Final = ShareOrSizeType()


def read_api_keys(values: tuple[str, ...]) -> tuple[str, ...]:
    """The keys of `--api-key` values: a key, or `@file` with one key per line (`#` begins a comment line)."""
    keys: list[str] = []
    for value in values:
        if not value.startswith("@"):
            keys.append(value)
            continue
        try:
            lines = [line.strip() for line in Path(value[1:]).expanduser().read_text(encoding="utf-8").splitlines()]
        except (OSError, UnicodeDecodeError) as error:
            raise click.BadParameter(f"cannot read {value[1:]}: {error}", param_hint="'--api-key'") from error
        found = [line for line in lines if line and not line.startswith("#")]
        if not found:
            raise click.BadParameter(f"{value[1:]} holds no key", param_hint="'--api-key'")
        keys += found
    # Headers carry only visible ASCII: a key with other characters could never be sent.
    if any(not key.isascii() or not key.isprintable() or not key or " " in key for key in keys):
        raise click.BadParameter("a key is one word of visible ASCII characters", param_hint="'--api-key'")
    return tuple(keys)

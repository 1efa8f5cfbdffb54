"""Parses values from the command line or a config file: sizes like `2GiB`, keys like `@keys.txt`."""

import re
import stat
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import click

from .sources import add_note

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


def format_count(count: int) -> str:
    """Of parameters: `596 M`, `8.03 B`."""
    return f"{count / 1e9:.2f} B" if count >= 1e9 else f"{count / 1e6:.{1 if count < 1e8 else 0}f} M"


class NameType(click.ParamType[str]):
    """A text that is not empty."""

    name = "text"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not str(value).strip():
            self.fail("is empty; give a name, or leave the option out", param, ctx)
        return str(value)


class NamedType(click.ParamType[str]):
    """NAME=VALUE, of a name that stands in requests."""

    def __init__(self, kind: str, example: str) -> None:
        self.name = f"name={kind}"
        self._example = example

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        name, _, rest = str(value).partition("=")
        if not name.strip() or not rest or ":" in name or name == "latest":
            problem = f"{value!r} is not {self.name.upper()}, as in {self._example}; a name has no colon"
            self.fail(problem, param, ctx)
        return str(value)


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
    """The address of a server; `example` is one."""

    name = "url"

    def __init__(self, example: str) -> None:
        self._example = example

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            url = urlsplit(str(value))
            valid = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
        except ValueError:  # the port is not a number
            valid = False
        if not valid:
            self.fail(f"{value!r} is not a URL of http or https, such as {self._example}", param, ctx)
        return str(value)


class ServerUrlType(HttpUrlType):
    """The address of a Triolet server, with or without the /v1 with which other clients are given it."""

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return super().convert(value, param, ctx).rstrip("/").removesuffix("/v1").rstrip("/")


class OriginType(click.ParamType[str]):
    """A page's origin as browsers send it: lower case, no path, no port that its scheme implies. Or `*`."""

    name = "origin"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value)
        if text == "*":
            return text
        try:
            url = urlsplit(text.lower())
            port, name = url.port, url.netloc.rpartition("@")[2]
        except ValueError:  # the port is not a number
            self.fail(_NO_ORIGIN.format(text), param, ctx)
        if not url.scheme or not url.hostname or name != url.netloc or url.path not in ("", "/") or url.query:
            self.fail(_NO_ORIGIN.format(text), param, ctx)
        if port == {"http": 80, "https": 443}.get(url.scheme):
            name = name.rpartition(":")[0] if port is not None else name
        return f"{url.scheme}://{name}"


_NO_ORIGIN: Final = "{!r} is not the origin of a page, which has no path, such as http://localhost:3000"


class RootPathType(click.ParamType[str]):
    """A path without a slash at its end; of characters that nothing on the way to the server spells differently."""

    name = "path"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        path = str(value).rstrip("/")
        if path and not re.fullmatch(r"(/(?!\.{1,2}(/|$))[A-Za-z0-9._~-]+)+", path):
            self.fail(f"{value!r} is not a path of plain letters, digits, - . _ and ~, such as /llm", param, ctx)
        if path.split("/")[1:2] and path.split("/")[1] in _OWN_PATHS:
            self.fail(f"{value!r} begins like a path of the server's own; take another, such as /llm", param, ctx)
        return path


_OWN_PATHS: Final = (  # how all routes begin
    *("v1", "static", "health", "internal", "dashboard", "docs", "openapi.json", "metrics", "version"),
    *("api", "models", "tokenize", "detokenize", "tokenizer_info", "v2", "rerank"),
)
COLLECTOR_URL: Final = HttpUrlType("http://127.0.0.1:4318")
SERVER_URL: Final = ServerUrlType("http://127.0.0.1:8000")
ROOT_PATH: Final = RootPathType()
NAME: Final = NameType()
ADAPTER: Final = NamedType("path", "legal=adapters/legal")
ALIAS: Final = NamedType("model", "chat=qwen")
ORIGIN: Final = OriginType()
SIZE: Final = SizeType()
SHARE_OR_SIZE: Final = ShareOrSizeType()


def read_api_keys(values: tuple[str, ...], hint: str = "'--api-key'") -> tuple[str, ...]:
    """The keys of `--api-key` values: a key, or `@file` with one key per line (`#` begins a comment line).

    `hint` names where they came from, for errors. A file that every user can read is worth a note.
    """
    keys = [key for value in values for key in _keys_in(value, hint)]
    for value in values:
        if value.startswith("@") and (path := Path(value[1:]).expanduser()).stat().st_mode & stat.S_IROTH:
            add_note(f"every user of this machine can read these keys; chmod 600 {path}")
    return tuple(keys)


def _keys_in(value: str, hint: str) -> list[str]:
    keys = [value]
    if value.startswith("@"):
        try:
            lines = [line.strip() for line in Path(value[1:]).expanduser().read_text(encoding="utf-8").splitlines()]
        except (OSError, UnicodeDecodeError) as error:
            raise click.BadParameter(f"cannot read {value[1:]}: {error}", param_hint=hint) from error
        keys = [line for line in lines if line and not line.startswith("#")]
        if not keys:
            raise click.BadParameter(f"{value[1:]} holds no key", param_hint=hint)
    # Headers carry only visible ASCII: a key with other characters could never be sent.
    if any(not key.isascii() or not key.isprintable() or not key or " " in key for key in keys):
        raise click.BadParameter("a key is one word of visible ASCII characters", param_hint=hint)
    return keys


class ClientKeyType(click.ParamType[str]):
    """The key that a client sends: the key itself, or `@file` with one line of it."""

    name = "key or @file"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        keys = _keys_in(str(value), param.get_error_hint(ctx) if param is not None else "'--api-key'")
        if len(keys) > 1:
            self.fail(f"{str(value)[1:]} holds {len(keys)} keys, and a client sends one", param, ctx)
        return keys[0]


CLIENT_KEY: Final = ClientKeyType()

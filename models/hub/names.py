"""What MODEL means: a folder, a .gguf file, or a name on the hub. Looks at the disk, never at the network.

A path that exists wins over a name, and `./ORG/NAME` is always a path.
"""

import re
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Final

from msgspec import Struct

from ..errors import LoadError
from .cache import cached_repos
from .choice import choose_gguf

_PART: Final = r"[A-Za-z0-9_](?:[\w.-]*[A-Za-z0-9_])?"
_NAME: Final = re.compile(
    rf"(?:https://huggingface\.co/|https://hf\.co/|hf\.co/)?(?!\S*(?:--|\.\.))({_PART}/{_PART})(?:@([\w./-]+))?",
    re.ASCII,
)
_FILES: Final = (".gguf", ".safetensors", ".bin", ".pt", ".json")  # a name that ends so is a file's
_MEANING: Final = (
    "MODEL is a folder as Hugging Face writes it, a .gguf file, or a name on the hub such as Qwen/Qwen3-0.6B"
)


class NotThere(LoadError):
    """No model is found under what was given; the message says what was looked for, and what to do."""

    code = "invalid_checkpoint"


class HubName(Struct, frozen=True):
    """ORG/NAME[@REVISION]; the revision is a branch, a tag or a commit, None the branch that the hub shows."""

    repo: str
    revision: str | None = None

    def __str__(self) -> str:
        return self.repo if self.revision is None else f"{self.repo}@{self.revision}"


def hub_name(text: str) -> HubName | None:
    """None for a path: one that exists, one with ./, ../, / or ~ in front, or what cannot be a name."""
    found = _NAME.fullmatch(text)
    if found is None or found[1].lower().endswith(_FILES) or Path(text).exists():
        return None
    return HubName(found[1], found[2])


def local_model(text: str, gguf_file: str | None = None) -> Path:
    """The folder with a config.json, or the .gguf file, of a path. `gguf_file` chooses among those of a folder.

    Raises NotThere.
    """
    path = Path(text).expanduser()
    if not path.exists():
        raise NotThere(f"no folder {text}, and no file: {_MEANING}{did_you_mean(text)}")
    if path.is_file():
        if path.suffix != ".gguf":
            beside = path.suffix in _FILES
            remedy = f"pass the folder that it is in, {path.parent}" if beside else _MEANING
            raise NotThere(f"{text} is a file: {remedy}")
        return path
    if gguf_file is None and (path / "config.json").is_file():
        return path
    sizes = {file.name: file.stat().st_size for file in path.glob("*.gguf")}
    if sizes:
        return path / choose_gguf(sizes, gguf_file, text)[0]
    if gguf_file is not None:
        raise NotThere(f"--gguf-file {gguf_file}: {text} holds no .gguf file; leave the option out")
    inside = next(path.glob("snapshots/*/config.json"), None)
    hint = f"; pass {inside.parent}" if inside else ""
    raise NotThere(f"{text} has no config.json and no .gguf file: {_MEANING}{hint}")


def did_you_mean(text: str) -> str:
    """`; did you mean …, which is in the cache?`, or nothing where no cached name is near."""
    wanted = text.lower()
    spelt = {alike: repo for repo in cached_repos() for alike in _spellings(repo)}
    near = get_close_matches(wanted, spelt, n=1, cutoff=0.75)
    return f"; did you mean {spelt[near[0]]}, which is in the cache?" if near else ""


def _spellings(repo: str) -> Iterator[str]:
    """A name in full, and without its organisation, which people forget."""
    yield repo.lower()
    yield repo.lower().partition("/")[2]

"""Which files of a repository are needed. Pure: from names and sizes to names.

Weights are safetensors, else PyTorch's .bin or .pt files, else one GGUF file with all its parts. The same weights in
other formats (`original/`, `onnx/`, `consolidated.*`) stay on the hub.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

from ..errors import LoadError

GB: Final = 10**9
_SMALL: Final = re.compile(
    r"[^/]+\.(?:json|jinja|model|tiktoken)|(?:vocab|merges|dict)\.txt|additional_chat_templates/[^/]+\.jinja"
    r"|\d+_\w+/config\.json"  # a stage after an encoder: pooling, a dense layer
)
_STAGE: Final = re.compile(r"(\d+_\w+/)(?:model\.safetensors|pytorch_model\.bin)")
_STEMS: Final = {".safetensors": "model", ".bin": "pytorch_model", ".pt": "model"}
PYTORCH: Final = (".bin", ".pt")
_FOREIGN: Final = re.compile(r"(?:consolidated|adapter_|training_|optimizer|scheduler|rng_state).*", re.IGNORECASE)
_SHARDS: Final = re.compile(r"-\d{5}-of-\d{5}\.(?:safetensors|bin)")
_SPLIT: Final = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")
_BESIDE: Final = re.compile(r"(?:.*/)?(?:mmproj|imatrix)[^/]*", re.IGNORECASE)  # of vision, and of quantisation


class NoSuchFiles(LoadError):
    """The repository or folder has no weights that can be read, or several to choose from."""

    code = "invalid_checkpoint"


class Choice(NamedTuple):
    """Names of files, of a size that matters (`weights`) or not. `entry`: the GGUF file to open, None for a folder."""

    small: tuple[str, ...]
    weights: tuple[str, ...]
    entry: str | None = None


def choose_files(sizes: Mapping[str, int], gguf_file: str | None, name: str) -> Choice:
    """From the bytes of every file of the repository `name`. Raises NoSuchFiles."""
    small = tuple(file for file in sizes if _SMALL.fullmatch(file) and not _FOREIGN.fullmatch(file))
    stages = _stages(sizes)
    for suffix in () if gguf_file is not None else _STEMS:
        if weights := _weights([file for file in sizes if file.endswith(suffix)], suffix, sizes):
            return Choice(small, (*weights, *stages))
    ggufs = {file: size for file, size in sizes.items() if file.endswith(".gguf")}
    if not ggufs:
        wanted = (
            "no .gguf files" if gguf_file is not None else "no safetensors, .bin, .pt or .gguf files that hold a model"
        )
        raise NoSuchFiles(f"{name} has {wanted}, but {_listed(sizes)}")
    parts = choose_gguf(ggufs, gguf_file, name)
    return Choice((), parts, parts[0])


def _stages(files: Collection[str]) -> tuple[str, ...]:
    """The weights of the stages, each in one form."""
    found = (_STAGE.fullmatch(file) for file in files)
    folders = dict.fromkeys(match[1] for match in found if match)
    forms = ((f"{folder}model.safetensors", f"{folder}pytorch_model.bin") for folder in folders)
    return tuple(one if one in files else other for one, other in forms)


def _weights(found: Iterable[str], suffix: str, all_files: Collection[str]) -> list[str]:
    """The shards if there is an index, else the one file with the usual name, else all in the top folder."""
    files = [file for file in found if "/" not in file and not _FOREIGN.fullmatch(file)]
    stem = _STEMS[suffix]
    shards = [file for file in files if _SHARDS.search(file)]
    usual = [file for file in shards if _SHARDS.sub("", file) == stem]
    if f"{stem}{suffix}.index.json" in all_files and shards:
        return usual or shards
    if f"{stem}{suffix}" in files:
        return [f"{stem}{suffix}"]
    return files if suffix == ".safetensors" else []


def choose_gguf(sizes: Mapping[str, int], wanted: str | None, name: str) -> tuple[str, ...]:
    """The parts of one GGUF model, the first one first. `wanted`: a file's name, or what only one name has in it.

    Raises NoSuchFiles with the candidates and their sizes, where the choice is open or parts are missing.
    """
    groups: dict[str, list[str]] = {}
    for file in sorted(sizes):
        split = _SPLIT.fullmatch(file)
        groups.setdefault(f"{split[1]}.gguf" if split else file, []).append(file)
    models = {whole: parts for whole, parts in groups.items() if not _BESIDE.fullmatch(whole)}
    listed = ", ".join(f"{parts[0]} ({_size(sum(sizes[part] for part in parts))})" for parts in models.values())
    if not models:
        raise NoSuchFiles(f"{name} has no .gguf file that holds a model")
    near = list(models) if wanted is None else _named(models, wanted)
    if not near:
        raise NoSuchFiles(f"--gguf-file {wanted}: {name} has no such file, but {listed}")
    if len(near) > 1:
        which = "several .gguf files" if wanted is None else f"several .gguf files with {wanted} in their names"
        raise NoSuchFiles(f"{name} has {which}: choose with --gguf-file, as in --gguf-file Q4_K_M, among {listed}")
    parts = models[near[0]]
    split = _SPLIT.fullmatch(parts[0])
    if split and len(parts) != int(split[3]):
        raise NoSuchFiles(f"{near[0]} of {name} has {len(parts)} of its {int(split[3])} parts: get the missing ones")
    return tuple(parts)


def _named(models: Mapping[str, list[str]], wanted: str) -> list[str]:
    for whole, parts in models.items():
        if wanted in (whole, whole.rpartition("/")[2], *parts, *(part.rpartition("/")[2] for part in parts)):
            return [whole]
    within = re.compile(rf"(?<![A-Za-z0-9]){re.escape(wanted.lower())}(?![A-Za-z0-9_])")  # Q4_K is not Q4_K_M
    return [whole for whole in models if within.search(whole.lower())]


def _listed(sizes: Mapping[str, int], most: int = 8) -> str:
    if not sizes:
        return "no files at all"
    shown = ", ".join(sorted(sizes)[:most])
    return f"{shown} and {len(sizes) - most} more" if len(sizes) > most else shown


def _size(count: int) -> str:
    return f"{count / GB:.2f} GB"

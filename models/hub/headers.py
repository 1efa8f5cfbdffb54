"""A model of the hub without its weights: config files and the headers of its weights, by requests for ranges.

What is fetched becomes a folder whose files of weights have the right size and hold nothing behind their headers; the
holes take no room on the disk. So the loader's own code reads and refuses it, as it would the whole model.
"""

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final

import huggingface_hub.utils._headers as hub_headers
from huggingface_hub import HfApi, hf_hub_url
from huggingface_hub.utils._http import get_session, hf_raise_for_status

from ..checkpoint.safetensors import MAX_HEADER_BYTES
from .archive_headers import fetch_archive
from .choice import PYTORCH, choose_files
from .fetch import Hubs, explained, files_of, missing_files
from .order import Wanted

_FIRST: Final = 128 << 10  # holds nearly every safetensors header
_GGUF_FIRST: Final = 24 << 20  # metadata with a vocabulary of 262,144 tokens, and the tensors' places, take some 16 MiB
_TOKENIZER: Final = ("tokenizer.json", "vocab.json", "tekken.json")  # large, and no part of a plan
_LARGEST_TEXT: Final = 16 << 20
_AT_ONCE: Final = 8


def fetch_headers(wanted: Wanted, hub: Hubs, folder: Path) -> Path:
    """The model's folder, or .gguf file: in `folder`, or in the cache if all of it is there. Raises LoadError."""
    name = wanted.name
    with explained(name, hub):
        api = HfApi(endpoint=hub.endpoint, library_name="triolet")
        commit = api.resolve_revision(name.repo, revision=name.revision, cache_dir=hub.cache).resolved
        sizes = files_of(api, name, commit, hub)
        choice = choose_files(sizes, wanted.gguf_file, str(name))
        if not missing_files((*choice.small, *choice.weights), name, commit, hub):
            folder = hub.folder / f"models--{name.repo.replace('/', '--')}" / "snapshots" / commit
            return folder if choice.entry is None else folder / choice.entry

        def get(file: str) -> None:
            _get(hf_hub_url(name.repo, file, revision=commit, endpoint=hub.endpoint), folder / file, sizes[file])

        texts = [file for file in choice.small if file.endswith(".json") and file not in _TOKENIZER]
        with ThreadPoolExecutor(_AT_ONCE) as threads:
            list(threads.map(get, (*texts, *choice.weights)))
    return folder if choice.entry is None else folder / choice.entry


def _get(url: str, path: Path, size: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".json":
        path.write_bytes(_read(url, 0, min(size, _LARGEST_TEXT)))
        return
    if path.suffix in PYTORCH:
        fetch_archive(partial(_read, url), path, size)
        return
    data = _read(url, 0, min(size, _GGUF_FIRST if path.suffix == ".gguf" else _FIRST))
    if path.suffix == ".safetensors":
        end = min(8 + int.from_bytes(data[:8], "little"), 8 + MAX_HEADER_BYTES, size)  # what is longer is refused later
        data = data[:end] if end <= len(data) else data + _read(url, len(data), end)
    with path.open("wb") as file:
        file.write(data)
        file.truncate(size)


def _read(url: str, first: int, end: int) -> bytes:
    """The bytes from `first` to before `end`; of an answer with more, which ignores the range, no more is read."""
    headers = {**hub_headers.build_hf_headers(library_name="triolet"), "Range": f"bytes={first}-{end - 1}"}
    with get_session().stream("GET", url, headers=headers, follow_redirects=True) as response:
        hf_raise_for_status(response)
        skip = 0 if response.status_code == 206 else first
        data = bytearray()
        for chunk in response.iter_bytes():
            data += chunk
            if len(data) >= skip + end - first:
                break
    return bytes(data[skip : skip + end - first])

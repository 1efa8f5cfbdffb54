"""Brings a model from the hub into the hub's cache: only the files that are needed, and checked.

The work is huggingface_hub's: its cache, its token, HF_HUB_OFFLINE, HF_ENDPOINT, parallel files, a cut connection that
goes on where it was, finished files that are never fetched twice, and a lock between processes. Added here: the choice
of files, the config's refusal before gigabytes come, the room on the disk, digests, and one sentence for each failure.

A program of its own, because the library's import takes time and memory that the process of a server should not spend.
"""

import os
import shutil
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from glob import escape
from pathlib import Path
from typing import Final

import huggingface_hub
import msgspec
from httpx2 import HTTPError
from huggingface_hub import HfApi, constants, errors
from huggingface_hub.hf_api import RepoFile
from huggingface_hub.utils.tqdm import disable_progress_bars
from msgspec import Struct

from ..checkpoint.families.families import load_spec
from ..checkpoint.files import read_json
from ..encoder.checkpoint import MAX_CONFIG_BYTES, holds_encoder, makes_vectors
from ..encoder.spec import encoder_from_config
from ..errors import LoadError
from .check import check_files
from .choice import Choice, choose_files
from .names import HubName, NotThere, did_you_mean
from .order import Fetched, Order, Wanted

_MARGIN: Final = 1 << 28  # bytes of the disk that are left alone
_DEFAULT_BRANCH: Final = "main"


class Hubs(Struct, frozen=True):
    """The hub and the cache: where to fetch from and to; None: as huggingface_hub's variables say."""

    endpoint: str | None = None
    cache: str | None = None

    @property
    def folder(self) -> Path:
        return Path(self.cache or constants.HF_HUB_CACHE)

    @property
    def url(self) -> str:
        return self.endpoint or constants.ENDPOINT


def fetch(wanted: Wanted, hub: Hubs, say: Callable[[str], object] = str) -> Path:
    """The folder of the snapshot, or the .gguf file in it. Raises LoadError with a sentence for the user."""
    name = wanted.name
    with explained(name, hub):
        api = HfApi(endpoint=hub.endpoint, library_name="triolet")
        revision = api.resolve_revision(name.repo, revision=name.revision, cache_dir=hub.cache)
        sizes = files_of(api, name, revision.resolved, hub)
        choice = choose_files(sizes, wanted.gguf_file, str(name))

        def get(files: tuple[str, ...]) -> Path:
            _refuse_full_disk(sizes, files, name, revision.resolved, hub)
            return Path(
                huggingface_hub.snapshot_download(
                    name.repo,
                    revision=revision,
                    cache_dir=hub.cache,
                    endpoint=hub.endpoint,
                    library_name="triolet",
                    allow_patterns=[escape(file) for file in files],
                )
            )

        if choice.small:
            _refuse_unsupported(get(choice.small))
        missing = sum(sizes[file] or 0 for file in missing_files(choice.weights, name, revision.resolved, hub))
        if missing:
            say(f"fetching {name} from {hub.url}: {missing / 1e9:.2f} GB, to {hub.folder}")
        folder = get(choice.weights)
        check_files(folder, {file: sizes[file] for file in (*choice.small, *choice.weights)}, str(name), say=say)
    return _entry(folder, choice)


def _entry(folder: Path, choice: Choice) -> Path:
    return folder if choice.entry is None else folder / choice.entry


def files_of(api: HfApi, name: HubName, commit: str, hub: Hubs) -> Mapping[str, int]:
    """Bytes of every file of this commit; a commit that was listed once is not asked for again."""
    try:
        found = list(huggingface_hub.get_cached_repo_tree(name.repo, revision=commit, cache_dir=hub.cache))
    except errors.CachedRepoTreeNotFoundError:
        if constants.is_offline_mode():  # fetched by an older version of the library: what is there must do
            return _files_in(hub.folder / f"models--{name.repo.replace('/', '--')}" / "snapshots" / commit)
        listed = api.list_repo_tree(name.repo, recursive=True, revision=commit)
        found = [file for file in listed if isinstance(file, RepoFile)]
    return {file.path: file.size for file in found}


def _files_in(folder: Path) -> Mapping[str, int]:
    return {str(file.relative_to(folder)): file.stat().st_size for file in folder.rglob("*") if file.is_file()}


def _refuse_unsupported(folder: Path) -> None:
    """Before its weights come. A repository without config.json is one of other files, which the loader refuses."""
    if not (folder / "config.json").is_file():
        return
    if holds_encoder(folder):
        encoder_from_config(read_json(folder, "config.json", MAX_CONFIG_BYTES))
    else:
        load_spec(folder, headless=makes_vectors(folder))


def missing_files(files: tuple[str, ...], name: HubName, commit: str, hub: Hubs) -> list[str]:
    def is_there(file: str) -> bool:
        found = huggingface_hub.try_to_load_from_cache(name.repo, file, cache_dir=hub.cache, revision=commit)
        return isinstance(found, str)

    return [file for file in files if not is_there(file)]


def _refuse_full_disk(sizes: Mapping[str, int], files: tuple[str, ...], name: HubName, commit: str, hub: Hubs) -> None:
    needed = sum(sizes[file] for file in missing_files(files, name, commit, hub))
    disk = next(folder for folder in (hub.folder, *hub.folder.absolute().parents) if folder.exists())
    free = shutil.disk_usage(disk).free
    if needed and needed + _MARGIN > free:
        raise NotThere(
            f"{name} needs {needed / 1e9:.2f} GB, and {free / 1e9:.2f} GB are free on the disk of {hub.folder}: "
            "make room, or set HF_HOME to a folder on another disk"
        )


@contextmanager
def explained(name: HubName, hub: Hubs) -> Generator[None]:
    """The library's errors as one sentence each. Raises NotThere."""
    try:
        yield
    except LoadError:
        raise
    except errors.GatedRepoError as error:
        known = "the token in use has no access" if _has_token() else "log in with `hf auth login`, or set HF_TOKEN"
        raise NotThere(f"{name} is gated: accept its conditions at {hub.url}/{name.repo}; {known}") from error
    except errors.RepositoryNotFoundError as error:
        private = "to which this token has no access" if _has_token() else "which needs `hf auth login` or HF_TOKEN"
        near = did_you_mean(name.repo)
        raise NotThere(
            f"there is no folder {name.repo} here, and no model of this name on {hub.url}, or it is a private one, "
            f"{private}: check the spelling{near}"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise NotThere(
            f"{name.repo} has no revision {name.revision or _DEFAULT_BRANCH} on {hub.url}: "
            "after @ comes a branch, a tag or a commit"
        ) from error
    except errors.DisabledRepoError as error:
        raise NotThere(f"{name.repo} has been disabled on {hub.url}: take another model") from error
    except (HTTPError, errors.RevisionResolutionError, OSError) as error:
        raise NotThere(_out_of_reach(name, hub, error)) from error


def _out_of_reach(name: HubName, hub: Hubs, error: Exception) -> str:
    where = f"{name} is not in the cache, {hub.folder}, or not all of it"
    if constants.is_offline_mode():
        return f"{where}, and HF_HUB_OFFLINE is set: unset it, or pass a folder{did_you_mean(name.repo)}"
    if (status := _status(error)) is not None:
        return f"{hub.url} answered {status} for {name}: try again later"
    if isinstance(_cause(error), HTTPError):
        why = str(_cause(error)) or type(_cause(error)).__name__
        remedy = "connect, set HF_ENDPOINT to a mirror, or pass a folder"
        return f"{where}, and {hub.url} cannot be reached ({why}): {remedy}"
    return f"{name} could not be fetched from {hub.url}: {str(error).splitlines()[0]}; try again"


def _cause(error: BaseException) -> BaseException:
    """What the library's error came from, if that was the network's."""
    while error.__cause__ is not None and not isinstance(error, HTTPError):
        error = error.__cause__
    return error


def _status(error: BaseException) -> int | None:
    cause = _cause(error)
    return cause.response.status_code if isinstance(cause, errors.HfHubHTTPError) else None


def _has_token() -> bool:
    return huggingface_hub.get_token() is not None


def main() -> None:
    """Fetch what standard input asks for, as `Order`, and write `Fetched` to standard output."""
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=Order)
    if not order.bars:
        disable_progress_bars()

    def say(line: str) -> None:
        if order.lines:
            print(f"  {line}", file=sys.stderr, flush=True)

    try:
        answer = Fetched(paths=[str(fetch(wanted, Hubs(), say)) for wanted in order.models])
    except LoadError as error:
        answer = Fetched(problem=str(error))
    except KeyboardInterrupt:
        os._exit(130)  # the threads that fetch would go on until their files are there
    sys.stdout.buffer.write(msgspec.json.encode(answer))


if __name__ == "__main__":
    main()

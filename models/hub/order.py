"""What a command asks the program that fetches for, and its answer. Knows nothing of the hub's library."""

from msgspec import Struct

from .names import HubName


class Wanted(Struct, frozen=True):
    """A model to fetch; `gguf_file` chooses among a repository's GGUF files."""

    name: HubName
    gguf_file: str | None = None


class Order(Struct, frozen=True):
    """The models, and whether bars and lines may go to standard error."""

    models: list[Wanted]
    bars: bool = False
    lines: bool = False


class Fetched(Struct, frozen=True):
    """A folder or a .gguf file for each model, or a sentence that says why not."""

    paths: list[str] = []
    problem: str = ""

"""The tokenizer of a checkpoint folder, from the first of these files that it has: `tokenizer.json`, `tekken.json`,
`*.tiktoken`, and `tokenizer.model`, which is SentencePiece's or again tiktoken's.

The last two do not tell everything. What stands around a text and which tokens were added is in tokenizer_config.json,
added_tokens.json and special_tokens_map.json, as transformers writes them.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final, cast

from msgspec import Struct, convert
from tokenizers import AddedToken, Tokenizer

from ...errors import CheckpointError, is_failure
from ..config import Config
from ..files import find_file, read_bytes, read_json
from . import sentencepiece_file, tekken, tiktoken
from .added import add_tokens, surround
from .sentencepiece import tokenizer_of_pieces

JSON_FILE: Final = "tokenizer.json"
MAX_JSON_BYTES: Final = 128 << 20  # the largest known have 33 MB
MAX_CONFIG_BYTES: Final = 16 << 20
# Of these, transformers moves the ids of the file or puts others before them.
MOVED: Final = (
    *("Barthez", "BigBird", "Camembert", "DebertaV2", "MBart", "Nllb", "Pegasus", "RemBert", "SeamlessM4T", "T5"),
    *("XGLM", "XLMRoberta", "XLNet"),
)


class _Added(Struct):
    """An entry of `added_tokens_decoder`."""

    content: str
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False
    normalized: bool = False
    special: bool = False


def read_config(folder: Path) -> dict[str, object]:
    """tokenizer_config.json with what special_tokens_map.json adds to it; empty if there is neither."""
    return _json(folder, "special_tokens_map.json") | _json(folder, "tokenizer_config.json")


def _json(folder: Path, name: str) -> dict[str, object]:
    return {} if find_file(folder, name) is None else read_json(folder, name, MAX_CONFIG_BYTES)


def read_tokenizer(folder: Path, config: Mapping[str, object]) -> tuple[Tokenizer, dict[str, str]]:
    """The tokenizer and the texts of its special tokens, by the names that `config` and templates have for them.

    Raises CheckpointError, UnsupportedModel.
    """
    texts = {key: _text(value) for key, value in config.items() if key.endswith("_token")}
    named = {key: text for key, text in texts.items() if text is not None}
    if find_file(folder, JSON_FILE) is not None:
        return _parsed(read_bytes(folder, JSON_FILE, MAX_JSON_BYTES)), named
    if find_file(folder, tekken.FILE) is not None:
        tokens = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
        return tekken.tekken_tokenizer(read_bytes(folder, tekken.FILE, tekken.MAX_BYTES)), tokens | named
    names = [*sorted(path.name for path in folder.glob("*.tiktoken")), "tiktoken.model", "tokenizer.model"]
    for name in names:
        if find_file(folder, name) is not None:
            return _completed(read_bytes(folder, name, sentencepiece_file.MAX_BYTES), name, folder, config, named)
    sources = f"{JSON_FILE}, {tekken.FILE}, *.tiktoken, tokenizer.model"
    raise CheckpointError("file", str(folder), f"has no tokenizer; one of {sources} is needed")


def _parsed(data: bytes) -> Tokenizer:
    try:
        return Tokenizer.from_buffer(data)
    except BaseException as error:  # the library raises plain Exception, and panics at merges that it did not foresee
        if not is_failure(error):
            raise
        raise CheckpointError("file", JSON_FILE, f"cannot be read: {str(error)[:500]}") from None


def _completed(
    data: bytes, name: str, folder: Path, values: Mapping[str, object], named: dict[str, str]
) -> tuple[Tokenizer, dict[str, str]]:
    """A tokenizer whose file says only the vocabulary."""
    config = Config(values, "tokenizer_config.")
    kind = config.text("tokenizer_class", "")
    if kind.startswith(MOVED):
        raise config.unsupported("tokenizer_class", f"its ids are not those of {name}; save it as {JSON_FILE}")
    listed = _listed(folder, values)
    if name != "tokenizer.model" or tiktoken.looks_like_tiktoken(data):
        tokenizer, adds_bos = tiktoken.tiktoken_tokenizer(data, name, listed), False
    else:
        file, adds_bos = sentencepiece_file.read_sentencepiece(data, name), True
        own = {"bos_token": file.bos, "eos_token": file.eos, "pad_token": file.pad}
        named = {key: text for key, text in own.items() if text is not None} | named
        if config.has("add_prefix_space") and not config.flag("add_prefix_space", True):
            file.pieces.adds_prefix = False
        tokenizer = tokenizer_of_pieces(file.pieces, prefixes_all=config.flag("legacy", True))
        add_tokens(tokenizer, listed, name)
    before = named.get("bos_token") if config.flag("add_bos_token", adds_bos) else None
    behind = named.get("eos_token") if config.flag("add_eos_token", False) else None
    surround(tokenizer, before, behind, name)
    return tokenizer, named


def _listed(folder: Path, config: Mapping[str, object]) -> dict[int, AddedToken]:
    """Tokens that were added to the vocabulary, by id."""
    try:
        plain = convert(_json(folder, "added_tokens.json"), dict[str, int])
        described = convert(config.get("added_tokens_decoder", {}), dict[str, _Added])
        tokens = {id: AddedToken(text, special=True, normalized=False) for text, id in plain.items()}
        return tokens | {int(id): _token(entry) for id, entry in described.items()}
    except ValueError as error:  # a ValidationError is one
        raise CheckpointError("added_tokens_decoder", "…", str(error)) from None


def _token(entry: _Added) -> AddedToken:
    return AddedToken(
        entry.content,
        single_word=entry.single_word,
        lstrip=entry.lstrip,
        rstrip=entry.rstrip,
        normalized=entry.normalized,
        special=entry.special,
    )


def _text(token: object) -> str | None:
    """A special token of tokenizer_config.json: a string, or an object with flags."""
    found = cast("dict[str, object]", token).get("content") if isinstance(token, dict) else token
    return found if isinstance(found, str) else None

"""`tokenizer.model` of SentencePiece: a protocol buffer with the pieces and how a text is normalised.

Numbers of fields: https://github.com/google/sentencepiece/blob/master/src/sentencepiece_model.proto.
"""

from typing import Final, Literal

from msgspec import Struct

from ...errors import CheckpointError, UnsupportedModel
from .added import MAX_TOKENS
from .protobuf import content, fields, float32, integer, text
from .sentencepiece import PieceKind, PieceTable

MAX_BYTES: Final = 64 << 20  # the largest known have 5 MB
_ALGORITHMS: Final[dict[int, Literal["bpe", "unigram"]]] = {1: "unigram", 2: "bpe"}
_NAMES: Final = {3: "word", 4: "char"}


class SentencePieceFile(Struct, frozen=True):
    """The pieces, and the texts of those that the file calls beginning, end and padding."""

    pieces: PieceTable
    bos: str | None
    eos: str | None
    pad: str | None


class _Trainer(Struct):
    """The part of TrainerSpec that matters when a text is encoded. Defaults are those of the file format."""

    algorithm: int = 1
    suffixes_spaces: bool = False
    byte_fallback: bool = False
    bos: int = 1
    eos: int = 2
    pad: int = -1


class _Normalizer(Struct):
    charsmap: bytes = b""
    adds_prefix: bool = True
    removes_extra_spaces: bool = True
    escapes_spaces: bool = True


def read_sentencepiece(data: bytes, file: str) -> SentencePieceFile:
    """Raises CheckpointError for what is no such file, UnsupportedModel for what no tokenizer here can do."""
    texts: list[str] = []
    scores: list[float] = []
    kinds: list[int] = []
    trainer, normalizer = _Trainer(), _Normalizer()
    for number, value in fields(data, file):
        if number == 1:
            piece, score, kind = _piece(content(value, file), file)
            texts.append(piece)
            scores.append(score)
            kinds.append(kind)
            if len(texts) > MAX_TOKENS:
                raise CheckpointError(file, len(texts), f"pieces; at most {MAX_TOKENS} are read")
        elif number == 2:
            trainer = _trainer(content(value, file), file)
        elif number == 3:
            normalizer = _normalizer(content(value, file), file)
    _refuse(trainer, normalizer, file)

    def named(id: int) -> str | None:
        return texts[id] if 0 <= id < len(texts) and kinds[id] == PieceKind.CONTROL else None

    pieces = PieceTable(
        texts=texts,
        scores=scores,
        kinds=kinds,
        algorithm=_ALGORITHMS[trainer.algorithm],
        charsmap=normalizer.charsmap,
        adds_prefix=normalizer.adds_prefix,
        removes_extra_spaces=normalizer.removes_extra_spaces,
        byte_fallback=trainer.byte_fallback,
        file=file,
    )
    return SentencePieceFile(pieces, named(trainer.bos), named(trainer.eos), named(trainer.pad))


def _refuse(trainer: _Trainer, normalizer: _Normalizer, file: str) -> None:
    remedy = "save the tokenizer as tokenizer.json, or use a model with BPE or unigram pieces"
    if trainer.algorithm not in _ALGORITHMS:
        kind = _NAMES.get(trainer.algorithm, trainer.algorithm)
        raise UnsupportedModel(f"{file}: model_type", kind, remedy)
    if trainer.suffixes_spaces:
        raise UnsupportedModel(f"{file}: treat_whitespace_as_suffix", True, remedy)
    if not normalizer.escapes_spaces:
        raise UnsupportedModel(f"{file}: escape_whitespaces", False, remedy)


def _piece(data: bytes, file: str) -> tuple[str, float, int]:
    piece, score, kind = "", 0.0, int(PieceKind.NORMAL)
    for number, value in fields(data, file):
        if number == 1:
            piece = text(value, file)
        elif number == 2:
            score = float32(value, file)
        elif number == 3:
            kind = integer(value, file)
    if not PieceKind.NORMAL <= kind <= PieceKind.BYTE:
        raise CheckpointError(file, f"type {kind} of {piece!r}", "is not a known type of piece")
    return piece, score, kind


def _trainer(data: bytes, file: str) -> _Trainer:
    found = dict(fields(data, file))  # of a field that occurs twice the last one counts
    default = _Trainer()
    return _Trainer(
        algorithm=integer(found.get(3, default.algorithm), file),
        suffixes_spaces=bool(found.get(24, default.suffixes_spaces)),
        byte_fallback=bool(found.get(35, default.byte_fallback)),
        bos=integer(found.get(41, default.bos), file),
        eos=integer(found.get(42, default.eos), file),
        pad=integer(found.get(43, default.pad), file),
    )


def _normalizer(data: bytes, file: str) -> _Normalizer:
    found = dict(fields(data, file))
    default = _Normalizer()
    return _Normalizer(
        charsmap=content(found.get(2, default.charsmap), file),
        adds_prefix=bool(found.get(3, default.adds_prefix)),
        removes_extra_spaces=bool(found.get(4, default.removes_extra_spaces)),
        escapes_spaces=bool(found.get(5, default.escapes_spaces)),
    )

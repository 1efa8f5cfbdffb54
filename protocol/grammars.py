"""What an answer must be, as a client asked for it, and the messages to and from the process that compiles it."""

from typing import Final, Literal

from msgspec import Struct

from .message import Message

MAX_GRAMMAR_BYTES: Final = 1 << 18  # of one grammar or schema: larger ones are hardly in use, and many are kept


# As Python and most models write JSON: `{"a": 1, "b": [2, 3]}`. Without these spaces a small model writes nonsense, and
# where it may write any it may write nothing else. What is known in advance also takes no steps of the model's.
JSON_SPACING: Final[dict[str, object]] = {
    "item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False
}  # fmt: skip


def spacing_of(pattern: str | None) -> dict[str, object]:
    """The compiler's options for the white space of JSON: `pattern` is a regex for each gap."""
    return JSON_SPACING if pattern is None else {"whitespace_pattern": pattern}


class GrammarSource(Struct, frozen=True, kw_only=True):
    """A schema or grammar as the client wrote it; not compiled yet.

    `param` is the field that it came in, for errors. "grammar" is Lark or llama.cpp's GBNF, whichever it looks like.
    `schemas`: of Lark that the server wrote, the field of each rule that is a client's schema, by the rule's name.
    """

    kind: Literal["json_schema", "regex", "lark", "grammar"]
    text: str
    param: str
    schemas: dict[str, str] = {}
    lenient: bool = False  # json_schema: keywords that the compiler does not know are left out, with a warning
    whitespace_pattern: str | None = None  # json_schema: a regex for each gap; None: one space behind , and :


class OpenCompiler(Message, frozen=True, kw_only=True):
    """front -> compiler, the first message: read the tokenizer of this checkpoint folder. Limits are per grammar."""

    model: str
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    cpu_seconds: int = 3  # ordinary grammars take milliseconds
    memory: int = 128 << 20  # bytes beyond what the process has with its tokenizer; the worker will need as many


class CompileGrammar(Message, frozen=True, kw_only=True):
    """front -> compiler: answered by GrammarAccepted or GrammarRefused, or by the compiler's death."""

    source: GrammarSource


class CompilerReady(Message, frozen=True, kw_only=True):
    """compiler -> front: `problem` says why this model's tokenizer cannot be used with grammars, if so."""

    problem: str = ""


class GrammarAccepted(Message, frozen=True, kw_only=True):
    """compiler -> front: `grammar` is what the worker compiles; `warnings` name what of the source it leaves out."""

    grammar: str
    memory: int = 0  # bytes that it takes, once it is built
    warnings: tuple[str, ...] = ()


class GrammarRefused(Message, frozen=True, kw_only=True):
    """compiler -> front: `place` is the path inside a schema, such as `.properties.tags`.

    `param` is the field of that schema, if it is one of the source's `schemas`.
    """

    message: str
    param: str = ""
    place: str = ""


ToCompiler = OpenCompiler | CompileGrammar
FromCompiler = CompilerReady | GrammarAccepted | GrammarRefused

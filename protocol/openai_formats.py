"""How OpenAI's bodies say what an answer must be: `response_format`, and the fields of vLLM and llama.cpp."""

from typing import Annotated

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from .openai_messages import Hint

MAX_CHOICES = 1024  # texts to choose from
JsonSchema = Annotated[Raw, Meta(description="A JSON schema.", extra_json_schema={"type": "object"})]
TextOrSchema = Annotated[
    Raw,
    Meta(
        description="A JSON schema, as an object or as its text.",
        extra_json_schema={"anyOf": [{"type": "object"}, {"type": "string"}, {"type": "null"}]},
    ),
]
Regex = Annotated[str, Meta(description="The whole answer matches it: Rust's syntax, without look-around.")]
Choice = Annotated[list[str], Meta(min_length=1, max_length=MAX_CHOICES, description="The answer is one of these.")]
LarkOrGbnf = Annotated[str, Meta(description="A grammar: Lark as llguidance reads it, or llama.cpp's GBNF.")]


class ResponseFormatText(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="text"):
    """Any text."""


class ResponseFormatJsonObject(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="json_object"
):
    """A JSON object; with llama.cpp's `schema`, one that fits it."""

    schema: JsonSchema | UnsetType = UNSET


class NamedSchema(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`name` and `description` are the client's own notes."""

    name: Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_-]{1,64}$(?!\n)")]
    schema: JsonSchema
    strict: Annotated[bool, Meta(description="A keyword that cannot be enforced is an error.")] | None = None
    description: Hint = UNSET


class ResponseFormatJsonSchema(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="json_schema"
):
    """JSON that fits a schema."""

    json_schema: NamedSchema


ResponseFormat = ResponseFormatText | ResponseFormatJsonObject | ResponseFormatJsonSchema


class StructuredOutputs(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """vLLM's form: one of `json`, `regex`, `choice`, `grammar` and `json_object`, and how JSON is spaced."""

    json: TextOrSchema | UnsetType = UNSET
    regex: Regex | None = None
    choice: Choice | None = None
    grammar: LarkOrGbnf | None = None
    json_object: bool | None = None
    whitespace_pattern: (
        Annotated[
            str, Meta(description="A regex for each gap in JSON; without it, one space behind each comma and colon.")
        ]
        | None
    ) = None
    disable_any_whitespace: bool | None = None
    disable_fallback: Hint = UNSET  # there is no other compiler to fall back to
    structural_tag: None = None

"""Every way in which a body can be wrong has its code and names its field. Pure: no server, no engine."""

import json
from typing import Any

import msgspec
import pytest

from triolet.protocol.errors import ApiError
from triolet.protocol.openai_requests import ChatBody, CompletionBody
from triolet.web.openai.decode import decode

CHAT = msgspec.json.Decoder(ChatBody)
COMPLETION = msgspec.json.Decoder(CompletionBody)
HELLO = {"role": "user", "content": "Hi"}


def refusal(data: bytes, decoder: "msgspec.json.Decoder[Any]") -> tuple[str, str | None]:
    with pytest.raises(ApiError) as caught:
        decode(data, decoder)
    assert caught.value.status == 400
    assert len(caught.value.message) < 700  # whatever the client sent, it does not come back whole
    return caught.value.code, caught.value.param


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"[]",
        b'"x"',
        b"3",
        b"{",
        b'{"messages": [{"role": "user", "content": ""}]} trailing',
        b"\xef\xbb\xbf{}",
        "{}".encode("utf-16"),
        b'{"model": "\xff"}',
        b'{"\xff": 1}',
        b'{"model": "\\ud800"}',
        b'{"model": "a\x01"}',
        b'{"functions": ' + b"[" * 100_000,
        b'{"functions": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
)
def test_what_is_no_json_object_in_utf8(data: bytes) -> None:
    assert refusal(data, CHAT) == ("invalid_json", None)


WRONG_FIELDS: list[tuple[dict[str, object], str, str]] = [
    ({"max_tokens": 5.5}, "invalid_type", "max_tokens"),
    ({"max_tokens": "5"}, "invalid_type", "max_tokens"),
    ({"max_tokens": True}, "invalid_type", "max_tokens"),
    ({"max_tokens": 2**64}, "integer_out_of_range", "max_tokens"),
    ({"max_tokens": 2**31}, "integer_out_of_range", "max_tokens"),
    ({"max_tokens": -1}, "integer_out_of_range", "max_tokens"),
    ({"max_tokens": 0}, "integer_out_of_range", "max_tokens"),
    ({"n": 1_000_000}, "integer_out_of_range", "n"),
    ({"best_of": 1_000_000}, "integer_out_of_range", "best_of"),
    ({"top_logprobs": 1_000_000}, "integer_out_of_range", "top_logprobs"),
    ({"top_p": -0.1}, "invalid_value", "top_p"),
    ({"top_k": -5}, "invalid_value", "top_k"),
    ({"top_k": 0.5}, "invalid_value", "top_k"),
    ({"min_p": 2}, "invalid_value", "min_p"),
    ({"temperature": 2.5}, "invalid_value", "temperature"),
    ({"temperature": "hot"}, "invalid_type", "temperature"),
    ({"repetition_penalty": 0}, "invalid_value", "repetition_penalty"),
    ({"repetition_penalty": -1}, "invalid_value", "repetition_penalty"),
    ({"repetition_penalty": 1e38}, "invalid_value", "repetition_penalty"),
    ({"repetition_penalty": 1e-300}, "invalid_value", "repetition_penalty"),
    ({"seed": 1.5}, "invalid_value", "seed"),
    ({"seed": "x"}, "invalid_value", "seed"),
    ({"stop": 5}, "invalid_stop", "stop"),
    ({"stop": ["a", None]}, "invalid_stop", "stop[1]"),
    ({"stop_token_ids": [-1]}, "invalid_token_id", "stop_token_ids[0]"),
    ({"logit_bias": {"x": 1}}, "invalid_token_id", "logit_bias"),
    ({"logit_bias": {"-1": 1}}, "invalid_token_id", "logit_bias"),
    ({"logit_bias": {"1": 101}}, "invalid_value", "logit_bias[...]"),
    ({"logit_bias": {str(i): 0 for i in range(1025)}}, "invalid_value", "logit_bias"),
    ({"stream": "yes"}, "invalid_type", "stream"),
    ({"stream_options": {"include_usage": 5}}, "invalid_type", "stream_options.include_usage"),
    ({"stream_options": {"x": 1}}, "unknown_parameter", "stream_options.x"),
    ({"cache_salt": ""}, "invalid_cache_salt", "cache_salt"),
    ({"cache_salt": "a/b"}, "invalid_cache_salt", "cache_salt"),
    ({"cache_salt": "ab\n"}, "invalid_cache_salt", "cache_salt"),
    ({"cache_salt": ["a"]}, "invalid_cache_salt", "cache_salt"),
    ({"cache_salt": "a" * 129}, "invalid_cache_salt", "cache_salt"),
    ({"determinism": "fast"}, "invalid_value", "determinism"),
    ({"determinism": True}, "invalid_type", "determinism"),
    ({"determinism": ["strict"]}, "invalid_type", "determinism"),
    ({"__proto__": 1}, "unknown_parameter", "__proto__"),
    ({"__class__": 1}, "unknown_parameter", "__class__"),
    ({"model_config": 1}, "unknown_parameter", "model_config"),
    ({"chat_template": "{{ 1 }}"}, "unknown_parameter", "chat_template"),
    ({"x" * 100_000: 1}, "unknown_parameter", "x" * 200),
    ({"messages": []}, "invalid_messages", "messages"),
    ({"messages": {}}, "invalid_type", "messages"),
    ({"messages": [{}]}, "invalid_value", "messages[0].role"),
    ({"messages": [{"role": "usr", "content": ""}]}, "invalid_value", "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "invalid_value", "messages[0].content"),
    ({"messages": [HELLO, {"role": "user", "content": 5}]}, "invalid_type", "messages[1].content"),
    ({"messages": [HELLO | {"mood": 1}]}, "unknown_parameter", "messages[0].mood"),
    ({"nothing": None, "mood": 1}, "unknown_parameter", "mood"),
    ({"nothing": None, "messages": [5]}, "invalid_type", "messages[0]"),
    ({"max_tokens": 5.0, "n": 2.5}, "invalid_type", "n"),
    ({"reasoning_effort": "much"}, "invalid_value", "reasoning_effort"),
    ({"chat_template_kwargs": {str(i): 0 for i in range(65)}}, "invalid_value", "chat_template_kwargs"),
    ({"documents": ["text"]}, "invalid_type", "documents[0]"),
    ({"messages": [HELLO | {"name": "a\nb"}]}, "invalid_messages", "messages[0].name"),
    ({"messages": [{"role": "tool", "content": ""}]}, "invalid_messages", "messages[0].tool_call_id"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///"}}]}]},
        "unsupported_parameter",
        "messages[0].content[0].type",
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "odd"}]}]},
        "invalid_value",
        "messages[0].content[0].type",
    ),
]


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    WRONG_FIELDS,
)
def test_a_wrong_field_is_named(fields: dict[str, object], code: str, param: str) -> None:
    data = json.dumps({"messages": [HELLO]} | fields).encode()
    assert refusal(data, CHAT) == (code, param)


@pytest.mark.parametrize("number", [b"1e400", b"9" * 100_000])
def test_numbers_beyond_all_types(number: bytes) -> None:
    data = b'{"messages": [{"role": "user", "content": "Hi"}], "max_tokens": %s}' % number
    assert refusal(data, CHAT) == ("integer_out_of_range", "max_tokens")


def test_a_wrong_word_is_answered_with_the_right_ones() -> None:
    with pytest.raises(ApiError, match=r"^determinism: .*'fast'; send default or strict\.$"):
        decode(json.dumps({"messages": [HELLO], "determinism": "fast"}).encode(), CHAT)


def test_a_conversation_is_required() -> None:
    assert refusal(b'{"model": "tiny"}', CHAT) == ("invalid_value", "messages")


@pytest.mark.parametrize(
    ("prompt", "code", "param"),
    [
        (5, "invalid_type", "prompt"),
        ({}, "invalid_type", "prompt"),
        ([[-1]], "invalid_token_id", "prompt[0][0]"),
        ([-1], "invalid_token_id", "prompt[0]"),
        ([2**63], "invalid_token_id", "prompt[0]"),
        ([True], "invalid_token_id", "prompt[0]"),
        ([1.0], "invalid_token_id", "prompt[0]"),
        ([[1, True]], "invalid_token_id", "prompt[0][1]"),
        ([None], "invalid_token_id", "prompt[0]"),
    ],
)
def test_prompts_of_the_wrong_kind(prompt: object, code: str, param: str) -> None:
    assert refusal(json.dumps({"prompt": prompt}).encode(), COMPLETION) == (code, param)


def test_what_clients_send_by_habit_is_accepted() -> None:
    body = decode(
        json.dumps(
            {
                "model": None,
                "messages": [
                    {"role": "developer", "content": [{"type": "text", "text": "Be brief."}]},
                    HELLO,
                    {
                        "role": "assistant",
                        "content": "Hello",
                        "refusal": None,
                        "annotations": [],
                        "audio": None,
                        "function_call": None,
                        "tool_calls": None,
                    },
                ],
                "temperature": 1,
                "max_tokens": None,
                "logit_bias": {"5": 1},
                "tools": None,
                "metadata": {"a": "b"},
                "user": "u",
            }
        ).encode(),
        CHAT,
    )
    assert len(body.messages) == 3
    assert body.logit_bias == {5: 1.0}


def test_a_null_of_an_unknown_name_asks_for_nothing() -> None:
    fields = {"seed": None, "top_a": None, "messages": [HELLO | {"weight": None, "name": None}], "max_tokens": 7}
    body = decode(json.dumps(fields).encode(), CHAT)
    assert (len(body.messages), body.max_tokens) == (1, 7)


def test_a_whole_number_may_be_spelt_as_a_float() -> None:
    body = decode(
        json.dumps({"messages": [HELLO], "max_tokens": 100.0, "seed": -1.0, "temperature": 1.0}).encode(), CHAT
    )
    assert (body.max_tokens, body.seed, body.temperature) == (100, -1, 1.0)


@pytest.mark.parametrize(
    "data", [b'{"top_a": null, "messages": [', b'{"top_a": null, "messages": [{"role": "user", "content": "\xff"}]}']
)
def test_a_body_that_is_read_twice_may_be_broken(data: bytes) -> None:
    assert refusal(data, CHAT) == ("invalid_json", None)


def test_a_name_is_refused_with_what_a_name_may_be() -> None:
    with pytest.raises(ApiError, match=r"^messages\[0\]\.name: is not a name; send 1 to 128 characters without spaces"):
        decode(json.dumps({"messages": [HELLO | {"name": "a b"}]}).encode(), CHAT)
    tools = [{"type": "function", "function": {"name": "a b"}}]
    with pytest.raises(
        ApiError, match=r"^tools\[0\]\.function\.name: is not a name; send 1 to 128 letters, digits, _, "
    ):
        decode(json.dumps({"messages": [HELLO], "tools": tools}).encode(), CHAT)

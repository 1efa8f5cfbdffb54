"""From a decoded body to the program's own request: defaults, bounds that need the model, refusals by name."""

import json
from typing import cast

import msgspec
import pytest

from triolet.protocol.errors import ApiError
from triolet.protocol.openai_requests import ChatBody, CompletionBody, StreamOptions
from triolet.protocol.requests import BeamRule, ChatPrompt, Generate, TextPrompt, TokenPrompt
from triolet.protocol.sampling import Sampling
from triolet.protocol.settings import LimitSettings
from triolet.web.generation.asked import Origin, ServedModel
from triolet.web.openai.decode import refuse_unsupported
from triolet.web.openai.request import generate_from_chat, generate_from_completion

from ..api.conftest import READY

SERVED = ServedModel(
    model="tiny",
    ready=READY,
    limits=LimitSettings(max_stop_strings=4, max_stop_length=10, max_choices=16),
)
ORIGIN = Origin(id="r1", tenant="t", arrival_time=1.5)
HELLO = {"role": "user", "content": "Hi"}


def chat(**fields: object) -> Generate:
    data = json.dumps({"messages": [HELLO]} | fields).encode()
    return generate_from_chat(msgspec.json.decode(data, type=ChatBody), SERVED, ORIGIN)


def completion(**fields: object) -> Generate:
    data = json.dumps({"prompt": "Once"} | fields).encode()
    return generate_from_completion(msgspec.json.decode(data, type=CompletionBody), SERVED, ORIGIN)


def prompt_of(request: Generate) -> ChatPrompt:
    (prompt,) = request.prompts
    assert isinstance(prompt, ChatPrompt)
    return prompt


def test_a_bare_chat_takes_the_models_defaults() -> None:
    request = chat()
    assert (request.id, request.tenant, request.arrival_time, request.model) == ("r1", "t", 1.5, "tiny")
    (prompt,) = request.prompts
    assert isinstance(prompt, ChatPrompt)
    assert prompt == ChatPrompt(messages=prompt.messages)
    assert (request.sampling.temperature, request.sampling.top_k, request.sampling.top_p) == (0.6, 20, 1.0)
    assert (request.n, request.max_tokens, request.sampling.logprobs) == (1, None, None)
    assert request.determinism == "default"
    assert 0 <= request.sampling.seed < 2**64


def test_what_the_client_says_wins_over_the_models_defaults() -> None:
    sampling = chat(temperature=0, top_k=-1, top_p=0.5, min_p=0.1, seed=2**64 - 1, min_tokens=3).sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p) == (0, 0, 0.5, 0.1)
    assert (sampling.seed, sampling.min_tokens) == (2**64 - 1, 3)


def test_a_prompt_may_be_cut_or_have_a_suffix() -> None:
    request = completion(prompt=[1] * 500, truncate_prompt_tokens=-1, truncation_side="right")
    assert (request.truncate_prompt_tokens, request.truncation_side) == (-1, "right")
    assert completion(suffix=" there").prompts == (TextPrompt(text="Once", suffix=" there"),)
    for wrong, param in (
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": 129}, "truncate_prompt_tokens"),
        ({"truncation_side": "left"}, "truncation_side"),
        ({"suffix": "x", "prompt": [1]}, "suffix"),
        ({"suffix": "x", "echo": True}, "suffix"),
        ({"suffix": "x", "truncate_prompt_tokens": 5}, "suffix"),
    ):
        with pytest.raises(ApiError) as caught:
            completion(**wrong)
        assert caught.value.param == param


def test_allowed_tokens_are_a_bit_each() -> None:
    assert chat(allowed_token_ids=[0, 9, 99, 9]).sampling.allowed_tokens == bytes([1, 2, *[0] * 10, 8, 0, 0, 0])
    assert chat().sampling.allowed_tokens == b""
    with pytest.raises(ApiError, match="allowed_token_ids: token ids must be below 100"):
        chat(allowed_token_ids=[100])
    assert chat(bad_words=["a b"]).bad_words == ("a b",)


def test_log_probabilities_of_the_prompt() -> None:
    request = completion(prompt_logprobs=3)
    assert (request.prompt_logprobs, request.sampling.prompt_logprobs, request.sampling.logprobs) == (3, 3, None)
    request = completion(prompt_logprobs=0, echo=True, logprobs=2)
    assert (request.prompt_logprobs, request.sampling.prompt_logprobs, request.sampling.logprobs) == (0, 2, 2)
    with pytest.raises(ApiError, match="leave stream out"):
        chat(prompt_logprobs=1, stream=True)


def test_requests_without_a_seed_differ() -> None:
    assert chat().sampling.seed != chat().sampling.seed
    assert chat(seed=-1).sampling.seed != chat(seed=-1).sampling.seed
    assert chat(seed=-2).sampling.seed == 2**64 - 2


def test_top_p_zero_leaves_the_most_probable_token() -> None:
    sampling = chat(top_p=0).sampling
    assert (sampling.top_k, sampling.top_p) == (1, 1.0)


def test_every_other_parameter_arrives() -> None:
    request = chat(
        max_completion_tokens=7,
        n=2,
        stop=["a", "b"],
        stop_token_ids=[5],
        ignore_eos=True,
        include_stop_str_in_output=True,
        skip_special_tokens=False,
        priority=-3,
        cache_salt="s-1",
        determinism="strict",
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        repetition_penalty=1.2,
        logit_bias={"9": -100, "3": 2},
        logprobs=True,
        top_logprobs=4,
    )
    assert (request.max_tokens, request.n, request.stop, request.stop_token_ids) == (7, 2, ("a", "b"), (5,))
    assert (request.ignore_eos, request.include_stop, request.skip_special_tokens) == (True, True, False)
    assert (request.priority, request.cache_salt, request.determinism) == (-3, "s-1", "strict")
    sampling = request.sampling
    assert (sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty) == (0.5, -0.5, 1.2)
    assert sampling.logit_bias == ((3, 2.0), (9, -100.0))
    assert sampling.logprobs == 4


def test_logprobs_alone_means_the_chosen_tokens_only() -> None:
    assert chat(logprobs=True).sampling.logprobs == 0
    assert chat(logprobs=False).sampling.logprobs is None
    assert completion(logprobs=3).sampling.logprobs == 3
    assert completion(logprobs=False).sampling.logprobs is None
    with pytest.raises(ApiError, match="logprobs is a number here"):
        completion(logprobs=True)


def test_tokens_as_ids_need_log_probabilities() -> None:
    assert chat(logprobs=True, return_tokens_as_token_ids=True).tokens_as_ids
    assert completion(logprobs=0, return_tokens_as_token_ids=True).tokens_as_ids
    assert not chat(return_tokens_as_token_ids=False).tokens_as_ids
    for request in (chat, completion):
        with pytest.raises(ApiError, match="needs logprobs") as caught:
            request(return_tokens_as_token_ids=True)
        assert (caught.value.code, caught.value.param) == ("invalid_value", "return_tokens_as_token_ids")


def test_no_tokens_are_asked_for_only_beside_an_echo() -> None:
    assert completion(max_tokens=0, echo=True).max_tokens == 0
    with pytest.raises(ApiError, match="needs echo: true") as caught:
        completion(max_tokens=0)
    assert caught.value.param == "max_tokens"


def test_special_tokens_are_added_as_asked() -> None:
    assert completion(prompt=["a"], add_special_tokens=False).prompts == (
        TextPrompt(text="a", add_special_tokens=False),
    )
    assert prompt_of(chat()).add_special_tokens is False
    assert prompt_of(chat(add_special_tokens=True)).add_special_tokens is True


def test_turns_become_plain_text_and_known_roles() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    request = chat(
        messages=[
            {"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            HELLO | {"name": "Ann"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "content": "4", "tool_call_id": "c1"},
        ]
    )
    prompt = request.prompts[0]
    assert isinstance(prompt, ChatPrompt)
    system, user, assistant, tool = prompt.messages
    assert (system.role, system.content) == ("system", "a\nb")
    assert (user.role, user.name) == ("user", "Ann")
    assert assistant.content is None
    assert assistant.tool_calls is not msgspec.UNSET
    assert assistant.tool_calls[0].function.name == "f"
    assert (tool.role, tool.tool_call_id) == ("tool", "c1")


def test_completions_have_their_own_default_length() -> None:
    assert completion().max_tokens == 16


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("a", (TextPrompt(text="a"),)),
        (["a", "b"], (TextPrompt(text="a"), TextPrompt(text="b"))),
        ([1, 2], (TokenPrompt(token_ids=(1, 2)),)),
        ([[1], [2, 3]], (TokenPrompt(token_ids=(1,)), TokenPrompt(token_ids=(2, 3)))),
    ],
)
def test_the_four_kinds_of_prompt(prompt: object, prompts: object) -> None:
    assert completion(prompt=prompt).prompts == prompts


def test_echo_with_logprobs_asks_for_the_prompts_too() -> None:
    request = completion(echo=True, logprobs=2)
    assert (request.echo, request.sampling.prompt_logprobs) == (True, 2)
    assert completion(logprobs=2).sampling.prompt_logprobs is None


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"model": "gpt"}, "model_not_found", "model"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "invalid_value", "max_completion_tokens"),
        ({"top_logprobs": 3}, "invalid_value", "top_logprobs"),
        ({"min_tokens": 5, "max_tokens": 4}, "invalid_value", "min_tokens"),
        ({"stream_options": {"include_usage": True}}, "invalid_type", "stream_options"),
        ({"seed": -(2**63) - 1}, "invalid_value", "seed"),
        ({"seed": 2**64}, "invalid_value", "seed"),
        ({"n": 17}, "integer_out_of_range", "n"),
        ({"best_of": 2, "n": 3}, "invalid_value", "best_of"),
        ({"best_of": 2, "stream": True}, "invalid_value", "best_of"),
        ({"best_of": 17}, "integer_out_of_range", "best_of"),
        ({"stop": ""}, "invalid_stop", "stop"),
        ({"stop": ["a", ""]}, "invalid_stop", "stop[1]"),
        ({"stop": "a" * 11}, "invalid_stop", "stop"),
        ({"stop": ["a"] * 5}, "invalid_stop", "stop"),
        ({"stop_token_ids": [100]}, "invalid_token_id", "stop_token_ids"),
        ({"logit_bias": {"100": 1}}, "invalid_token_id", "logit_bias"),
        ({"messages": [{"role": "assistant", "content": None}]}, "invalid_messages", "messages[0].content"),
    ],
)
def test_what_fields_may_not_be_together_or_for_this_model(fields: dict[str, object], code: str, param: str) -> None:
    with pytest.raises(ApiError) as caught:
        chat(**fields)
    assert (caught.value.code, caught.value.param) == (code, param)


@pytest.mark.parametrize(
    ("prompt", "code", "param"),
    [
        ([], "invalid_value", "prompt"),
        (["a", [1]], "invalid_type", "prompt"),
        ([1, "a"], "invalid_type", "prompt"),
        ([100], "invalid_token_id", "prompt"),
        ([[1], [100]], "invalid_token_id", "prompt[1]"),
        ([1] * 129, "context_length_exceeded", "prompt"),
        (["a"] * 17, "integer_out_of_range", "prompt"),
    ],
)
def test_prompts_that_cannot_be(prompt: object, code: str, param: str) -> None:
    with pytest.raises(ApiError) as caught:
        completion(prompt=prompt)
    assert (caught.value.code, caught.value.param) == (code, param)
    said = "This model's maximum context length is 128 tokens." in caught.value.message
    assert said == (code == "context_length_exceeded")


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": []},
        {"tools": None},
        {"tool_choice": "none"},
        {"parallel_tool_calls": True},
        {"response_format": {"type": "text"}},
        {"modalities": ["text"]},
        {"typical_p": 1.0, "mirostat": 0, "grammar": "", "thinking": None, "include_reasoning": True},
        {"max_tokens": 3, "max_completion_tokens": 3},
        {"best_of": 1},
        {"stop": []},
        {"use_beam_search": False, "early_stopping": False},
        {"length_penalty": 1.0},
        {"stream": True, "stream_options": {"include_usage": True, "include_obfuscation": False}},
        {"presence_penalty": 0, "frequency_penalty": 0, "logprobs": False, "top_logprobs": 0, "echo": False},
    ],
)
def test_values_that_ask_for_nothing_are_accepted(fields: dict[str, object]) -> None:
    chat(**fields)


# Every field whose value changes nothing. docs/api.md says why for each.
HINTS = (
    "cache_control", "cache_prompt", "id_slot", "keep_alive", "metadata", "prediction", "prompt_cache_key",
    "prompt_cache_options", "prompt_cache_retention", "request_id", "rid", "safety_identifier", "service_tier",
    "spaces_between_special_tokens", "store", "ttl", "user", "verbosity",
)  # fmt: skip


@pytest.mark.parametrize("value", ["x", True, {"a": [1, None]}, None])
@pytest.mark.parametrize("name", HINTS)
def test_hints_may_have_any_value(name: str, value: object) -> None:
    chat(**{name: value})
    completion(**{name: value})


def test_a_beam_search_looks_at_the_model_alone() -> None:
    """The model's defaults are for drawing; a seed or a temperature of 0 changes nothing."""
    asks = {"use_beam_search": True, "n": 4, "temperature": 0, "seed": 5, "min_tokens": 2, "enable_thinking": False}
    request = chat(**asks, length_penalty=0.6, early_stopping="never")
    assert request.beams == BeamRule(answers=4, length_penalty=0.6, early_stopping="never")
    assert request.sampling == Sampling(temperature=0.0, min_tokens=2)
    assert (request.n, request.reasoning_budget) == (4, None)
    best = completion(use_beam_search=True, best_of=5, n=2, logprobs=3)
    assert (best.n, best.beams, best.sampling.logprobs) == (5, BeamRule(answers=2), 3)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": 0.7}, "temperature"),
        ({"top_p": 0.9}, "top_p"),
        ({"top_k": 1}, "top_k"),
        ({"min_p": 0.1}, "min_p"),
        ({"presence_penalty": 1}, "presence_penalty"),
        ({"frequency_penalty": 1}, "frequency_penalty"),
        ({"repetition_penalty": 1.1}, "repetition_penalty"),
        ({"logit_bias": {"1": 1}}, "logit_bias"),
        ({"allowed_token_ids": [1]}, "allowed_token_ids"),
        ({"bad_words": ["a"]}, "bad_words"),
        ({"guided_regex": "a"}, "guided_regex"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"thinking_token_budget": 5}, "thinking_token_budget"),
        ({"prompt_logprobs": 1}, "prompt_logprobs"),
        ({"n": 11}, "n"),
        ({"best_of": 11}, "best_of"),
        ({"best_of": 2, "stream": True}, "best_of"),
        ({"use_beam_search": None, "length_penalty": 0.5}, "length_penalty"),
        ({"use_beam_search": False, "early_stopping": True}, "early_stopping"),
    ],
)
def test_what_a_beam_search_cannot_do_is_refused_by_name(fields: dict[str, object], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        chat(**{"use_beam_search": True, **fields})
    assert caught.value.param == param
    assert caught.value.status == 400


def test_a_beam_search_does_not_score_an_echo() -> None:
    completion(use_beam_search=True, echo=True)
    with pytest.raises(ApiError, match="echo cannot"):
        completion(use_beam_search=True, echo=True, logprobs=1)


NOT_IMPLEMENTED: list[tuple[dict[str, object], str]] = [
    ({"functions": [{}]}, "functions"),
    ({"modalities": ["text", "audio"]}, "modalities"),
    ({"audio": {}}, "audio"),
    ({"moderation": {"model": "omni-moderation-latest"}}, "moderation"),
    ({"web_search_options": {}}, "web_search_options"),
    ({"typical_p": 0.5}, "typical_p"),
    ({"mirostat": 2}, "mirostat"),
    ({"stream": True, "stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation"),
]


@pytest.mark.parametrize(
    ("fields", "param"),
    NOT_IMPLEMENTED,
)
def test_what_is_not_implemented_is_refused_by_name(fields: dict[str, object], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        chat(**fields)
    assert (caught.value.code, caught.value.param) == ("unsupported_parameter", param)


@pytest.mark.parametrize("body", [ChatBody, CompletionBody, StreamOptions])
def test_every_undecoded_field_is_checked(body: type[ChatBody | CompletionBody | StreamOptions]) -> None:
    """A field that is neither decoded nor refused would be ignored silently."""
    known = {"messages": [HELLO]} if body is ChatBody else {"prompt": "a"}
    for field in msgspec.structs.fields(body):
        if "Raw" not in str(field.type) or field.name in (
            *HINTS,
            "guided_json",
        ):  # web/openai/formats.py reads that one
            continue
        value: dict[str, object] = {field.name: {"asks": "something"}}
        if body is StreamOptions:
            decoded: ChatBody | CompletionBody = msgspec.json.decode(
                json.dumps(known | {"stream_options": value}), type=CompletionBody
            )
        else:
            decoded = msgspec.json.decode(json.dumps(known | value), type=cast("type[ChatBody | CompletionBody]", body))
        with pytest.raises(ApiError) as caught:
            refuse_unsupported(decoded)
        assert caught.value.param is not None
        assert caught.value.param.endswith(field.name)

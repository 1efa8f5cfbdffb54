"""Admission's rule: every limit, with the numbers and the field in the answer."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import trio

from triolet.actors.admission.admission import MAX_LOGPROBS, decide, run_admission
from triolet.protocol.errors import ApiError
from triolet.protocol.events import Failed, Finished
from triolet.protocol.messages import Admit, Cancel, ToAdmission, Tokenized
from triolet.protocol.requests import ChatMessage, ChatPrompt, Generate, TextPrompt
from triolet.protocol.sampling import Sampling
from triolet.protocol.steps import Ready

from ..wiring import Wired

Make = Callable[..., Generate]
MakeReady = Callable[..., Ready]
NOW = 10.0


def refusal(request: Generate, prompt: tuple[int, ...], ready: Ready) -> ApiError:
    decision = decide(Tokenized(request=request, prompts=(prompt,)), ready, NOW)
    assert isinstance(decision, ApiError)
    return decision


def admit(request: Generate, prompt: tuple[int, ...], ready: Ready) -> Admit:
    decision = decide(Tokenized(request=request, prompts=(prompt,)), ready, NOW)
    assert isinstance(decision, Admit), decision
    return decision


def test_max_tokens_is_resolved_against_the_context(generate: Make, make_ready: MakeReady) -> None:
    ready = make_ready(context_length=100)
    assert admit(generate(max_tokens=None), (5,) * 30, ready).max_tokens == (70,)
    assert admit(generate(max_tokens=70), (5,) * 30, ready).max_tokens == (70,)
    assert admit(generate(max_tokens=71, ends_at_context=True), (5,) * 30, ready).max_tokens == (70,)
    assert admit(generate(max_tokens=69, ends_at_context=True), (5,) * 30, ready).max_tokens == (69,)
    error = refusal(generate(max_tokens=71), (5,) * 30, ready)
    assert (error.code, error.param) == ("context_length_exceeded", "max_tokens")
    assert error.message == (
        "This model's maximum context length is 100 tokens. The prompt has 30 tokens and max_tokens is 71: together "
        "101. Set max_tokens to 70 or less, or leave it out. (context_length_exceeded)"
    )


@pytest.mark.parametrize(("length", "code"), [(0, "invalid_value"), (100, "context_length_exceeded")])
def test_a_prompt_needs_a_token_and_room_for_one(generate: Make, make_ready: MakeReady, length: int, code: str) -> None:
    error = refusal(generate(max_tokens=None), (5,) * length, make_ready(context_length=100))
    assert (error.code, error.param) == (code, "prompt")
    # LiteLLM and others fall back to another model by these words.
    assert ("This model's maximum context length is 100 tokens." in error.message) == (length == 100)


def test_a_keys_limit_bounds_prompts_and_answers(generate: Make, make_ready: MakeReady) -> None:
    ready = make_ready(context_length=4096)

    def decided(length: int, **fields: Any) -> Admit | ApiError:
        return decide(Tokenized(request=generate(**fields), prompts=((5,) * length,)), ready, NOW, 128)

    unbounded = decided(100, max_tokens=None)
    assert isinstance(unbounded, Admit)
    assert unbounded.max_tokens == (28,)
    for length, tokens, param in ((100, 29, "max_tokens"), (128, None, "prompt")):
        refused = decided(length, max_tokens=tokens)
        assert isinstance(refused, ApiError)
        assert (refused.code, refused.param) == ("context_length_exceeded", param)
        assert "128 tokens in the KV cache (kv_tokens)" in refused.message


def test_the_kv_cache_bounds_what_the_context_does_not(generate: Make, make_ready: MakeReady) -> None:
    ready = make_ready(context_length=4096)
    ready = msgspec.structs.replace(ready, memory=msgspec.structs.replace(ready.memory, num_blocks=2))
    error = refusal(generate(), (5,) * 128, ready)
    assert error.code == "context_length_exceeded"
    assert "--kv-cache-memory" in error.message
    assert admit(generate(max_tokens=None), (5,) * 100, ready).max_tokens == (28,)


def test_the_field_is_named_as_the_client_wrote_it(generate: Make, make_ready: MakeReady) -> None:
    ready = make_ready()
    chat = ChatPrompt(messages=(ChatMessage(role="user", content=""),))
    assert refusal(generate(prompts=(chat,)), (), ready).param == "messages"
    two = generate(prompts=(TextPrompt(text="a"), TextPrompt(text="")))
    decision = decide(Tokenized(request=two, prompts=((5,), ())), ready, NOW)
    assert isinstance(decision, ApiError)
    assert decision.param == "prompt[1]"


def test_log_probabilities_of_an_echo_are_bounded(generate: Make, make_ready: MakeReady) -> None:
    ready = make_ready(context_length=2048)
    ready = msgspec.structs.replace(ready, memory=msgspec.structs.replace(ready.memory, num_blocks=64))
    scored = Sampling(logprobs=20, prompt_logprobs=20)
    assert admit(generate(echo=True, sampling=scored, n=6), (5,) * 1000, ready)
    error = refusal(generate(echo=True, sampling=scored, n=7), (5,) * 1000, ready)
    assert (error.code, error.param) == ("invalid_value", "logprobs")
    assert str(7 * 1000 * 21) in error.message


def roomy(make_ready: MakeReady, context_length: int) -> Ready:
    ready = make_ready(context_length=context_length)
    memory = msgspec.structs.replace(ready.memory, num_blocks=context_length // 64)
    return msgspec.structs.replace(ready, memory=memory)


@pytest.mark.parametrize("max_tokens", [1900, None])
def test_log_probabilities_of_an_answer_are_bounded(
    generate: Make, make_ready: MakeReady, max_tokens: int | None
) -> None:
    ready = roomy(make_ready, 1920)
    scored = Sampling(logprobs=20)
    fits = MAX_LOGPROBS // (1900 * 21)
    admit(generate(sampling=scored, max_tokens=max_tokens, n=fits), (5,) * 20, ready)
    error = refusal(generate(sampling=scored, max_tokens=max_tokens, n=fits + 1), (5,) * 20, ready)
    assert (error.code, error.param, error.status) == ("integer_out_of_range", "logprobs", 400)
    assert str((fits + 1) * 1900 * 21) in error.message
    assert all(name in error.message for name in ("n,", "max_tokens", "top_logprobs"))
    remedy = MAX_LOGPROBS // ((fits + 1) * 21)
    assert f"set max_tokens to {remedy}" in error.message
    admit(generate(sampling=scored, max_tokens=remedy, n=fits + 1), (5,) * 20, ready)
    admit(generate(sampling=Sampling(logprobs=0), max_tokens=max_tokens, n=128), (5,) * 20, ready)
    admit(generate(max_tokens=max_tokens, n=128), (5,) * 20, ready)


def test_log_probabilities_count_in_all_prompts(generate: Make, make_ready: MakeReady) -> None:
    request = generate(prompts=(TextPrompt(text="a"),) * 20, sampling=Sampling(logprobs=20), max_tokens=1900)
    decision = decide(Tokenized(request=request, prompts=((5,),) * 20), roomy(make_ready, 1920), NOW)
    assert isinstance(decision, ApiError)
    assert decision.code == "integer_out_of_range"


def test_one_choice_may_be_scored_over_a_whole_context_of_32768(generate: Make, make_ready: MakeReady) -> None:
    scored = generate(sampling=Sampling(logprobs=20), max_tokens=None)
    assert admit(scored, (5,), roomy(make_ready, 2**15)).max_tokens == (2**15 - 1,)


def test_stop_tokens_are_the_models_and_the_requests(generate: Make, make_ready: MakeReady) -> None:
    ready = make_ready(eos_token_ids=(1, 2))
    assert admit(generate(stop_token_ids=(7, 2)), (5,), ready).stop_token_ids == (1, 2, 7)
    assert admit(generate(stop_token_ids=(7,), ignore_eos=True), (5,), ready).stop_token_ids == (7,)
    named = admit(generate(stop_token_ids=(2,), ignore_eos=True), (5,), ready)
    assert (named.stop_token_ids, named.eos_token_ids) == ((2,), ())  # so it is told which one stopped it


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"stop_token_ids": (400,)}, "stop_token_ids"),
        ({"sampling": Sampling(logit_bias=((-1, 1.0),))}, "logit_bias"),
    ],
)
def test_ids_outside_the_vocabulary(generate: Make, make_ready: MakeReady, changes: object, param: str) -> None:
    assert isinstance(changes, dict)
    error = refusal(generate(**changes), (5,), make_ready())
    assert (error.code, error.param) == ("invalid_token_id", param)


@pytest.mark.parametrize("max_tokens", [4, None])
def test_min_tokens_must_be_reachable(generate: Make, make_ready: MakeReady, max_tokens: int | None) -> None:
    request = generate(max_tokens=max_tokens, sampling=Sampling(min_tokens=300))
    assert refusal(request, (5,), make_ready()).param == "min_tokens"


def test_a_deadline_that_has_passed(generate: Make, make_ready: MakeReady) -> None:
    assert refusal(generate(deadline=10.0), (5,), make_ready()).code == "deadline_exceeded"
    admit(generate(deadline=10.1), (5,), make_ready())


async def test_every_refusal_is_an_answer_and_the_cancelled_are_let_go(
    wired: Callable[..., Wired], generate: Make, make_ready: MakeReady
) -> None:
    house = wired()
    send, inbox = trio.open_memory_channel[ToAdmission](3)
    outboxes = {id: house.gateway.submit(generate(id)) for id in ("good", "empty", "gone")}
    house.gateway.cancel("gone")
    for id, prompt in (("good", (5, 6)), ("empty", ()), ("gone", (5,))):
        send.send_nowait(Tokenized(request=generate(id), prompts=(prompt,)))
    send.close()
    await run_admission(inbox, ready=make_ready(), gateway=house.gateway, scheduler=house.to_scheduler.clone())
    messages = house.scheduler_messages()
    assert [message.request.id for message in messages if isinstance(message, Admit)] == ["good"]
    assert Cancel(id="gone") in messages
    (failed,) = await outboxes["empty"].drain()
    assert isinstance(failed, Failed)
    assert failed.code == "invalid_value"
    house.gateway.complete("good", "stop")
    (end,) = await outboxes["good"].drain()
    assert isinstance(end, Finished)
    assert end.usage.prompt_tokens == 2


def test_an_answer_with_a_grammar_ends_where_that_ends(generate: Make, make_ready: MakeReady) -> None:
    for fields in ({"sampling": Sampling(min_tokens=3)}, {"ignore_eos": True}):
        error = refusal(generate(grammar="start: /a/", **fields), (5,), make_ready())
        assert (error.code, error.param) == ("invalid_value", "ignore_eos" if "ignore_eos" in fields else "min_tokens")
    ready = msgspec.structs.replace(make_ready(), eos_token_ids=())
    assert refusal(generate(grammar="start: /a/"), (5,), ready).code == "unsupported_parameter"
    allowed = generate(grammar="start: /a/", stop_token_ids=(7,), sampling=Sampling(logit_bias=((9, -3.0),)))
    assert admit(allowed, (5,), make_ready()).stop_token_ids[-1] == 7

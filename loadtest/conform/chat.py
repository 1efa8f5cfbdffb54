"""Chat completions, answered whole."""

from typing import Any, Final

from .check import CheckGroup, expect
from .expectations import CHAT, REASONS, ask, ask_for, content, message, question
from .server import ExaminedServer

_OPTIONAL: Final = (
    "n", "stop", "seed", "top_p", "logprobs", "top_logprobs", "logit_bias", "user", "tools", "tool_choice",
    "response_format", "stream", "presence_penalty", "frequency_penalty",
)  # fmt: skip


async def models_are_listed(server: ExaminedServer) -> None:
    """/v1/models lists the models"""
    reply = await server.get("/v1/models")
    expect(reply.status == 200, reply.refusal)
    expect(reply["object"] == "list", f"object is {reply['object']!r}")
    expect(reply["data"], "it lists none")
    for card in reply["data"]:
        expect(card["object"] == "model", f"a model's object is {card['object']!r}")
        expect(isinstance(card["id"], str) and isinstance(card["created"], int), "a card lacks id or created")
        expect("owned_by" in card, "a card lacks owned_by")


async def one_model_is_found(server: ExaminedServer) -> None:
    """/v1/models/ID is that model's card"""
    reply = await server.get(f"/v1/models/{server.model}")
    expect(reply.status == 200, reply.refusal)
    expect(reply["id"] == server.model, f"it is another one: {reply['id']!r}")


async def an_answer_has_its_fields(server: ExaminedServer) -> None:
    """An answer has id, object, created, model, choices and usage"""
    reply = await ask(server)
    expect(reply["object"] == "chat.completion", f"object is {reply['object']!r}")
    expect(isinstance(reply["id"], str) and reply["id"], "id is empty")
    expect(isinstance(reply["created"], int), "created is no time in seconds")
    expect(isinstance(reply["model"], str), "model is no name")
    (choice,) = reply["choices"]
    expect(choice["index"] == 0, "index is not 0")
    expect(choice["finish_reason"] in REASONS, f"finish_reason is {choice['finish_reason']!r}")
    expect(message(reply)["role"] == "assistant", f"role is {message(reply)['role']!r}")
    content(reply)


async def usage_adds_up(server: ExaminedServer) -> None:
    """usage adds up, and is at least one token each"""
    usage = (await ask(server))["usage"]
    prompt, completion = usage["prompt_tokens"], usage["completion_tokens"]
    expect(prompt > 0 and completion > 0, f"{prompt} and {completion} tokens")
    expect(usage["total_tokens"] == prompt + completion, f"{usage['total_tokens']} is not {prompt} + {completion}")


async def max_tokens_cuts(server: ExaminedServer) -> None:
    """max_tokens cuts the answer and says length"""
    reply = await ask(server, max_tokens=3)
    reason, tokens = reply["choices"][0]["finish_reason"], reply["usage"]["completion_tokens"]
    expect((reason, tokens) == ("length", 3), f"{tokens} tokens, finish_reason {reason!r}")


async def max_completion_tokens_cuts(server: ExaminedServer) -> None:
    """max_completion_tokens does the same"""
    body = {name: value for name, value in question().items() if name != "max_tokens"}
    reply = await server.post(CHAT, body, max_completion_tokens=3)
    expect(reply.status == 200, reply.refusal)
    tokens = reply["usage"]["completion_tokens"]
    expect(tokens == 3, f"{tokens} tokens")


async def a_stop_string_ends_it(server: ExaminedServer) -> None:
    """A stop string ends the answer before itself"""
    whole = content(await ask(server))
    stop = whole[len(whole) // 2 :][:3]
    reply = await ask(server, stop=[stop])
    expect(reply["choices"][0]["finish_reason"] == "stop", "finish_reason is not stop")
    found, wanted = message(reply)["content"] or "", whole[: whole.index(stop)]
    expect(found == wanted, f"{found!r} instead of {wanted!r}")


async def greedy_answers_repeat(server: ExaminedServer) -> None:
    """With temperature 0 the same question has the same answer"""
    expect(content(await ask(server)) == content(await ask(server)), "two answers differ")


async def a_seed_repeats(server: ExaminedServer) -> None:
    """With a seed, temperature 1 repeats too"""
    first, second = [await ask_for(server, CHAT, question(temperature=1, seed=7)) for _ in range(2)]
    expect(message(first) == message(second), "two answers differ")


async def n_gives_several(server: ExaminedServer) -> None:
    """n=2 gives two choices, numbered 0 and 1"""
    reply = await ask_for(server, CHAT, question(n=2, temperature=1))
    numbers = sorted(choice["index"] for choice in reply["choices"])
    expect(numbers == [0, 1], f"their numbers are {numbers}")


async def log_probabilities_spell_the_answer(server: ExaminedServer) -> None:
    """logprobs: the tokens spell the answer, with top_logprobs alternatives each"""
    reply = await ask_for(server, CHAT, question(max_tokens=4, logprobs=True, top_logprobs=2))
    tokens = reply["choices"][0]["logprobs"]["content"]
    expect(len(tokens) == reply["usage"]["completion_tokens"], f"{len(tokens)} entries")
    spelled = b"".join(bytes(token["bytes"] or ()) for token in tokens).decode(errors="replace")
    expect(spelled == content(reply), f"they spell {spelled!r}")
    for token in tokens:
        expect(token["logprob"] <= 0, f"a log probability of {token['logprob']}")
        expect(len(token["top_logprobs"]) == 2, f"{len(token['top_logprobs'])} alternatives")


async def parts_are_text(server: ExaminedServer) -> None:
    """A message may be a list of text parts"""
    part = {"type": "text", "text": "Count from 1 to 20."}
    reply = await ask(server, messages=[{"role": "user", "content": [part]}])
    expect(content(reply) == content(await ask(server)), "one part is answered otherwise than its text")


async def turns_are_taken(server: ExaminedServer) -> None:
    """A conversation of several turns is taken, with a system message"""
    turns = ("system", "Be brief."), ("user", "Hi."), ("assistant", "Hello."), ("user", "Count from 1 to 3.")
    await ask(server, messages=[{"role": role, "content": text} for role, text in turns])


async def null_means_not_given(server: ExaminedServer) -> None:
    """Optional parameters may be null, as typed clients send them"""
    fields: dict[str, Any] = dict.fromkeys(_OPTIONAL)  # Any: JSON
    await ask(server, **fields)


GROUP: Final = CheckGroup(
    "chat",
    (
        models_are_listed,
        one_model_is_found,
        an_answer_has_its_fields,
        usage_adds_up,
        max_tokens_cuts,
        max_completion_tokens_cuts,
        a_stop_string_ends_it,
        greedy_answers_repeat,
        a_seed_repeats,
        n_gives_several,
        log_probabilities_spell_the_answer,
        parts_are_text,
        turns_are_taken,
        null_means_not_given,
    ),
)

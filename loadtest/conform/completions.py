"""Text completions, as evaluation harnesses and editors use them."""

from typing import Final

from .check import CheckGroup, expect
from .expectations import COMPLETIONS, ask_for, endpoint, expect_stream, streamed
from .server import ExaminedServer, RawReply

BODY: Final = {"prompt": "One, two, three,", "max_tokens": 8, "temperature": 0}


def texts(reply: RawReply) -> list[str]:
    return [choice["text"] for choice in sorted(reply["choices"], key=lambda choice: choice["index"])]


async def a_completion_has_its_fields(server: ExaminedServer) -> None:
    """A completion has id, object, created, model, choices and usage"""
    reply = await endpoint(server, COMPLETIONS, BODY)
    expect(reply["object"] == "text_completion", f"object is {reply['object']!r}")
    expect(reply["id"] and isinstance(reply["created"], int) and reply["model"], "a field is missing")
    expect(reply["choices"][0]["finish_reason"] in ("stop", "length"), "finish_reason is neither stop nor length")
    expect(reply["usage"]["completion_tokens"] <= BODY["max_tokens"], "it is longer than max_tokens")


async def a_completion_streams(server: ExaminedServer) -> None:
    """A streamed completion says the same"""
    whole = await endpoint(server, COMPLETIONS, BODY)
    reply = await endpoint(server, COMPLETIONS, BODY, stream=True)
    expect_stream(reply)
    expect(streamed(reply) == texts(whole)[0], f"{streamed(reply)!r} instead of {texts(whole)[0]!r}")


async def prompts_are_answered_in_order(server: ExaminedServer) -> None:
    """A list of prompts is answered in its order"""
    prompts = ["One, two,", "A, b, c,"]
    together = texts(await ask_for(server, COMPLETIONS, BODY, prompt=prompts))
    apart = [texts(await endpoint(server, COMPLETIONS, BODY, prompt=prompt))[0] for prompt in prompts]
    expect(together == apart, f"{together} instead of {apart}")


async def token_ids_are_a_prompt(server: ExaminedServer) -> None:
    """A prompt may be token ids"""
    reply = await ask_for(server, COMPLETIONS, BODY, prompt=[5, 6, 7])
    expect(reply["usage"]["prompt_tokens"] == 3, f"{reply['usage']['prompt_tokens']} prompt tokens, not 3")


async def echo_begins_with_the_prompt(server: ExaminedServer) -> None:
    """echo: the text begins with the prompt"""
    text = texts(await ask_for(server, COMPLETIONS, BODY, echo=True))[0]
    expect(text.startswith(str(BODY["prompt"])), f"it begins {text[:20]!r}")


async def a_prompt_is_scored(server: ExaminedServer) -> None:
    """echo with logprobs and max_tokens 0 or 1 scores the prompt"""
    reply = await ask_for(server, COMPLETIONS, BODY, echo=True, logprobs=1, max_tokens=1)
    scored = reply["choices"][0]["logprobs"]
    count = reply["usage"]["prompt_tokens"]
    expect(len(scored["tokens"]) >= count, f"{len(scored['tokens'])} entries for {count} tokens")
    expect(scored["token_logprobs"][0] is None, "the first token, which nothing precedes, has a log probability")
    expect(all(each <= 0 for each in scored["token_logprobs"][1:]), "a log probability is above 0")
    expect("".join(scored["tokens"][:count]) == BODY["prompt"], "the tokens do not spell the prompt")


async def suffixes_are_filled(server: ExaminedServer) -> None:
    """suffix: the text between two ends, without them"""
    end = "\n    return total"
    text = texts(await ask_for(server, COMPLETIONS, BODY, prompt="def add(a, b):\n", suffix=end))[0]
    expect(not text.endswith(end), f"it is {text!r}")


GROUP: Final = CheckGroup(
    "completions",
    (
        a_completion_has_its_fields,
        a_completion_streams,
        prompts_are_answered_in_order,
        token_ids_are_a_prompt,
        echo_begins_with_the_prompt,
        a_prompt_is_scored,
        suffixes_are_filled,
    ),
)

"""Streamed chat completions: Server-Sent Events as OpenAI's clients read them."""

from typing import Final

from .check import CheckGroup, expect
from .expectations import CHAT, ask, ask_for, content, expect_error, expect_stream, question, streamed
from .server import ExaminedServer


async def events_end_with_done(server: ExaminedServer) -> None:
    """Events are JSON, the last is [DONE]"""
    reply = await ask(server, stream=True)
    expect_stream(reply)
    kinds = {chunk["object"] for chunk in reply.chunks}
    expect(kinds == {"chat.completion.chunk"}, f"object is {kinds}")


async def chunks_belong_together(server: ExaminedServer) -> None:
    """All chunks have the same id, created and model"""
    reply = await ask(server, stream=True)
    for name in ("id", "created", "model"):
        values = {chunk[name] for chunk in reply.chunks}
        expect(len(values) == 1, f"{name} has {len(values)} values")


async def a_stream_says_the_same(server: ExaminedServer) -> None:
    """A stream's text is that of the whole answer"""
    whole, stream = content(await ask(server)), streamed(await ask(server, stream=True))
    expect(stream == whole, f"{stream!r} instead of {whole!r}")


async def the_role_comes_first(server: ExaminedServer) -> None:
    """The first delta names the role"""
    delta = (await ask(server, stream=True)).chunks[0]["choices"][0]["delta"]
    expect(delta.get("role") == "assistant", f"it is {delta}")


async def it_finishes_once(server: ExaminedServer) -> None:
    """Each choice has one finish_reason, in its last chunk"""
    reasons = [
        choice["finish_reason"]
        for chunk in (await ask(server, stream=True, max_tokens=3)).chunks
        for choice in chunk["choices"]
    ]
    expect(reasons[-1] == "length", f"the last is {reasons[-1]!r}")
    expect(not any(reasons[:-1]), f"there are several: {[reason for reason in reasons if reason]}")


async def usage_is_last(server: ExaminedServer) -> None:
    """include_usage: usage comes last, without choices, equal to the whole answer's"""
    whole = (await ask(server))["usage"]
    *chunks, last = (await ask(server, stream=True, stream_options={"include_usage": True})).chunks
    expect(last["choices"] == [], "the last chunk has choices")
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        expect(last["usage"][name] == whole[name], f"{name} is {last['usage'][name]}, not {whole[name]}")
    expect(not any(chunk.get("usage") for chunk in chunks), "another chunk has usage too")


async def no_usage_unasked(server: ExaminedServer) -> None:
    """Without include_usage no chunk is without choices"""
    expect(all(chunk["choices"] for chunk in (await ask(server, stream=True)).chunks), "a chunk has no choices")


async def usage_with_every_chunk(server: ExaminedServer) -> None:
    """continuous_usage_stats: every chunk has usage, and it grows"""
    options = {"include_usage": True, "continuous_usage_stats": True}
    reply = await ask_for(server, CHAT, question(stream=True, stream_options=options))
    counts = [chunk["usage"]["completion_tokens"] for chunk in reply.chunks]
    expect(counts == sorted(counts) and counts[-1] > 0, f"they are {counts}")


async def a_stop_string_is_never_shown(server: ExaminedServer) -> None:
    """No part of a stop string is streamed"""
    whole = content(await ask(server))
    stop = whole[len(whole) // 2 :][:3]
    found = streamed(await ask(server, stream=True, stop=[stop]))
    expect(found == whole[: whole.index(stop)], f"{found!r} was streamed of {whole!r}, with the stop string {stop!r}")


async def choices_stream_apart(server: ExaminedServer) -> None:
    """n=2: both choices stream, each with its number and its end"""
    reply = await ask_for(server, CHAT, question(n=2, stream=True))
    ends = [c["index"] for chunk in reply.chunks for c in chunk["choices"] if c["finish_reason"]]
    expect(sorted(ends) == [0, 1], f"those that end: {ends}")
    expect(streamed(reply, 0) == streamed(reply, 1) != "", "greedy choices differ")


async def log_probabilities_stream(server: ExaminedServer) -> None:
    """Streamed log probabilities are those of the whole answer"""
    body = question(logprobs=True, top_logprobs=1, max_tokens=4)
    whole = (await ask_for(server, CHAT, body))["choices"][0]["logprobs"]["content"]
    chunks = (await ask_for(server, CHAT, body, stream=True)).chunks
    found = [
        token
        for chunk in chunks
        for choice in chunk["choices"]
        if choice.get("logprobs")
        for token in choice["logprobs"]["content"]
    ]
    expect([each["token"] for each in found] == [each["token"] for each in whole], "the tokens differ")


async def a_refusal_has_its_status(server: ExaminedServer) -> None:
    """A bad request is a status, not an event"""
    expect_error(await server.post(CHAT, question(stream=True, temperature=-1)), 400, 422)


async def leaving_harms_nobody(server: ExaminedServer) -> None:
    """After a client leaves within its answer, the next is answered"""
    await server.leave(CHAT, question(stream=True, max_tokens=200))
    await ask(server)


GROUP: Final = CheckGroup(
    "streams",
    (
        events_end_with_done,
        chunks_belong_together,
        a_stream_says_the_same,
        the_role_comes_first,
        it_finishes_once,
        usage_is_last,
        no_usage_unasked,
        usage_with_every_chunk,
        a_stop_string_is_never_shown,
        choices_stream_apart,
        log_probabilities_stream,
        a_refusal_has_its_status,
        leaving_harms_nobody,
    ),
)

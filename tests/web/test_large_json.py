"""Large bodies: what is too much to decode at once, and that the rest is decoded away from the event loop."""

import json
import threading

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from triolet.protocol.errors import ApiError
from triolet.protocol.openai_requests import ChatBody
from triolet.web.large_json import LARGE, MAX_CONTAINERS, MAX_NUMBERS, MAX_STRINGS, check_values, decode_aside
from triolet.web.openai.conversation import chat_prompt
from triolet.web.openai.dialect import CHAT


def body(field: bytes, item: bytes, count: int) -> bytes:
    return b'{"%b": [%b]}' % (field, b",".join([item] * count))


HOSTILE = {
    "a prompt of lists": body(b"prompt", b"[1]", MAX_CONTAINERS),
    "ids": body(b"tokens", b"1", MAX_NUMBERS + 1),
    "messages": body(b"messages", b'{"role":"user","content":""}', MAX_CONTAINERS),
    "stop strings": body(b"stop", b'""', MAX_STRINGS),
    "metadata": json.dumps({"metadata": {str(number): "" for number in range(MAX_STRINGS)}}).encode(),
    "biases": json.dumps({"logit_bias": {str(number): 0 for number in range(MAX_NUMBERS)}}).encode(),
    "escaped": body(b"prompt", b'"\\\\","\\""', MAX_STRINGS),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_body_of_too_many_values_is_refused(name: str) -> None:
    with pytest.raises(ApiError, match=r"^The body holds more than ") as caught:
        check_values(HOSTILE[name])
    assert (caught.value.code, caught.value.status) == ("content_too_large", 413)


@pytest.mark.parametrize("text", ["[{,", '"', "\\", '\\"['])
def test_a_text_may_hold_anything(text: str) -> None:
    check_values(json.dumps({"prompt": text * MAX_NUMBERS}).encode())


def test_what_a_large_context_needs_is_accepted() -> None:
    check_values(body(b"prompt", b"31415", MAX_NUMBERS))
    check_values(body(b"messages", b'{"role": "user", "content": [{"type": "text", "text": "Hi"}]}', 4096))


async def test_only_a_large_body_is_decoded_in_a_thread() -> None:
    def thread(body: bytes | str) -> int:
        return threading.get_ident()

    here = threading.get_ident()
    assert await decode_aside(b" " * LARGE, thread, "") == here
    assert await decode_aside(b" " * (LARGE + 1), thread, "") != here
    assert await decode_aside(" " * (LARGE + 1), thread, "") != here


async def test_a_client_that_left_meanwhile_gets_no_request() -> None:
    begun, go_on = trio.Event(), threading.Event()
    token = trio.lowlevel.current_trio_token()

    def decode(body: bytes) -> None:
        token.run_sync_soon(begun.set)
        go_on.wait()

    async with trio.open_nursery() as nursery:

        async def leave() -> None:
            await begun.wait()
            nursery.cancel_scope.cancel()
            go_on.set()

        nursery.start_soon(leave)
        await decode_aside(b" " * (LARGE + 1), decode, "")
        pytest.fail("the request went on")


async def test_tenants_take_turns() -> None:
    begun, go_on = threading.Event(), threading.Event()
    decoded: list[str] = []

    def decode(body: bytes) -> None:
        begun.set()
        go_on.wait()
        decoded.append(body.strip().decode())

    async with trio.open_nursery() as nursery:
        for name, tenant in (("a1", "a"), ("a2", "a"), ("a3", "a"), ("b1", "b"), ("c1", "c")):
            nursery.start_soon(decode_aside, name.encode() + b" " * LARGE, decode, tenant)
            await wait_all_tasks_blocked()
        assert await trio.to_thread.run_sync(begun.wait, 20.0)
        go_on.set()
    assert decoded == ["a1", "b1", "c1", "a2", "a3"]


def test_arguments_of_a_tool_call_are_json_too() -> None:
    arguments = f"[{'0,' * MAX_NUMBERS}0]"
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    data = json.dumps({"messages": [{"role": "assistant", "tool_calls": [call]}]}).encode()
    check_values(data)
    decoded = CHAT.decoder.decode(data)
    assert isinstance(decoded, ChatBody)
    with pytest.raises(ApiError, match="holds more than"):
        chat_prompt(decoded)

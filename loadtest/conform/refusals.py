"""Bad requests: each has its status and an error of OpenAI's shape, and the server goes on."""

from typing import Final

from .check import CheckGroup, NotOffered, expect
from .expectations import CHAT, ask, expect_error, question
from .server import ExaminedServer

FAR_TOO_LONG: Final = 400_000  # words; beyond any context, and 2 MB


async def broken_json(server: ExaminedServer) -> None:
    """A body that is not JSON: 400"""
    expect_error(await server.post_bytes(CHAT, b'{"messages": ['), 400)


async def no_messages(server: ExaminedServer) -> None:
    """No messages: 400"""
    expect_error(await server.post(CHAT, {}), 400, 422)


async def a_wrong_type(server: ExaminedServer) -> None:
    """A field of the wrong type: 400, and the message names it"""
    error = expect_error(await server.post(CHAT, question(temperature="hot")), 400, 422)
    expect("temperature" in f"{error['message']} {error['param']}", f"temperature is not named: {error['message']!r}")


async def out_of_range(server: ExaminedServer) -> None:
    """A value out of range: 400, and the message names it"""
    error = expect_error(await server.post(CHAT, question(top_p=7)), 400, 422)
    expect("top_p" in f"{error['message']} {error['param']}", f"top_p is not named: {error['message']!r}")


async def an_unknown_model(server: ExaminedServer) -> None:
    """An unknown model: 404 with model_not_found"""
    error = expect_error(await server.post(CHAT, question(model="no-such-model")), 404)
    expect(error["code"] == "model_not_found", f"code is {error['code']!r}")


async def too_long(server: ExaminedServer) -> None:
    """A prompt beyond the context: 400 with context_length_exceeded"""
    error = expect_error(await server.post(CHAT, question("word " * FAR_TOO_LONG)), 400)
    expect(error["code"] == "context_length_exceeded", f"code is {error['code']!r}")


async def a_wrong_path(server: ExaminedServer) -> None:
    """An unknown path: 404"""
    expect_error(await server.post("/v1/no/such/thing", {}), 404)


async def a_wrong_method(server: ExaminedServer) -> None:
    """GET of a POST endpoint: 405"""
    expect_error(await server.get(CHAT), 405)


async def a_wrong_key(server: ExaminedServer) -> None:
    """A wrong API key: 401"""
    if server.key is None:
        raise NotOffered("no --api-key was given")
    expect_error(await server.get_with_key("/v1/models", "not-the-key"), 401)


async def it_goes_on(server: ExaminedServer) -> None:
    """After all of these the server answers"""
    await ask(server)


GROUP: Final = CheckGroup(
    "errors",
    (
        broken_json,
        no_messages,
        a_wrong_type,
        out_of_range,
        an_unknown_model,
        too_long,
        a_wrong_path,
        a_wrong_method,
        a_wrong_key,
        it_goes_on,
    ),
)

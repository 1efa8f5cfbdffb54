"""What reads bytes from outside, one function each: it returns, or an assertion says what the bytes broke.

Refusals are no failure: an ApiError, a LinkError, an answer with a status. The same functions run under hypothesis
(test_fuzz.py) and under a fuzzer that follows coverage (`python -m tests.fuzz`). Readers of checkpoints have targets of
their own in tests/models/checkpoint/fuzz.py.
"""

import random
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import h2.config
import h2.connection
import h11
import msgspec
import trio

from triolet.actors.errors import EngineLoadError
from triolet.actors.supervisor.link import HEADER, Link, LinkError
from triolet.actors.tokenizer.chat_template import checked_template
from triolet.protocol.errors import ApiError
from triolet.protocol.settings import LimitSettings
from triolet.protocol.steps import FromWorker, Pong, StepDone
from triolet.protocol.stream_frames import Auth, CreditFrame, FromClient
from triolet.web.anthropic.anthropic import read_messages
from triolet.web.generation.asked import Origin, ServedModel
from triolet.web.ollama.ollama import read_chat
from triolet.web.openai.decode import decode
from triolet.web.openai.dialect import CHAT, COMPLETIONS
from triolet.web.openai.openai import read
from triolet.web.responses.responses import read_response
from triolet.web.transport.plain_head import read_head

from ..actors.wiring import make_ready
from ..web.simulation.kernel import stream_pair
from .server import answered

Target = Callable[[bytes], None]

HEAD: Final = (
    b"POST /echo HTTP/1.1\r\nHost: x:8000\r\ncontent-type: application/json\r\nAuthorization: Bearer a b\r\n"
    b"Content-Length: 12\r\n\r\n"
)
_CHAT: Final = (
    b'{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"A"}]},{"role":"assistant","content":"B"}]'
    b',"stream":true,"stop":["x"],"n":2,"temperature":0.5,"logit_bias":{"3":1.5},"seed":-1,"max_tokens":5,'
    b'"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}],'
    b'"response_format":{"type":"json_schema","json_schema":{"name":"s","schema":{"type":"integer"}}}}'
)
_SERVED: Final = ServedModel("m", make_ready(), LimitSettings())
_ORIGIN: Final = Origin("id", "", 0.0)
_FRAMES: Final = msgspec.json.Decoder[FromClient](FromClient)
_FROM_WORKER: Final = msgspec.msgpack.Decoder[FromWorker](FromWorker)


def plain_head(data: bytes) -> None:
    """What is taken as plain, h11 reads in the same way."""
    plain = read_head(data)
    if plain is None:
        return
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(data)
    request, body = connection.next_event(), b""
    assert isinstance(request, h11.Request)
    assert (request.method, request.target, request.http_version) == (b"POST", plain.path.encode(), b"1.1")
    for name, value in request.headers:
        assert plain.headers.get(name.decode()) == value.decode()
    assert len({name for name, _ in request.headers}) == len(request.headers)
    while isinstance(event := connection.next_event(), h11.Data):
        body += event.data
    assert data[plain.size : plain.size + plain.content_length] == body


def http1(data: bytes) -> None:
    """A connection whose client says this and leaves."""
    answered(data)


def http2(data: bytes) -> None:
    answered(_PREFACE + data)


def websocket(data: bytes) -> None:
    handshake = (
        b"GET /socket HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    answered(handshake, data)


def json_body(data: bytes) -> None:
    """A body, in each dialect."""
    for reader in (_read_chat, _read_completion, read_messages, read_chat, read_response):
        with suppress(ApiError):
            reader(_SERVED, _ORIGIN, data)


def socket_frame(data: bytes) -> None:
    with suppress(ApiError):
        decode(data, _FRAMES)


def link(data: bytes) -> None:
    """What a worker could send."""

    async def receive() -> None:
        ours, theirs = stream_pair()
        await theirs.send_all(data)
        await theirs.aclose()
        reading = Link(ours, _FROM_WORKER)  # type: ignore[arg-type]  # what it uses of a stream
        with suppress(LinkError, trio.EndOfChannel):
            while True:
                await reading.receive()

    trio.run(receive)


def template(data: bytes) -> None:
    """A chat template of a checkpoint: it works or is refused."""
    with suppress(EngineLoadError):
        checked_template(data.decode(errors="replace"), {"bos_token": "<s>"}, "fuzzed")


def _read_chat(served: ServedModel, origin: Origin, data: bytes) -> object:
    return read(CHAT, served, origin, data)


def _read_completion(served: ServedModel, origin: Origin, data: bytes) -> object:
    return read(COMPLETIONS, served, origin, data)


def _http2_request() -> tuple[bytes, bytes]:
    """What a client sends first, and a request with a body, an update of its window and the end."""
    connection = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
    connection.initiate_connection()
    preface = connection.data_to_send()
    fields = [(":method", "POST"), (":scheme", "http"), (":authority", "x"), (":path", "/echo"), ("a", "b")]
    connection.send_headers(1, fields)
    connection.send_data(1, b"{}", end_stream=True)
    connection.increment_flow_control_window(1000)
    connection.ping(b"8 bytes.")
    return preface, connection.data_to_send()


def _frame(message: object) -> bytes:
    data = msgspec.msgpack.encode(message)
    return len(data).to_bytes(HEADER, "big") + data


def mutated(rng: random.Random, data: bytes) -> bytes:
    """A few bytes changed, taken out, doubled or put in: for those who have no fuzzer that follows coverage."""
    some = bytearray(data)
    for _ in range(rng.randrange(1, 6)):
        place = rng.randrange(len(some) + 1)
        size = rng.choice((1, 1, 2, 8, 40))
        match rng.randrange(4):
            case 0:
                some[place : place + size] = rng.randbytes(size)
            case 1:
                del some[place : place + size]
            case 2:
                some[place:place] = some[place : place + size]
            case _:
                some[place:place] = rng.choice((b"\r\n", b"\0", b"\xff", b'"', b"{", b"[", b"0", b": ", b"%", b"}}"))
    return bytes(some)


_PREFACE, _REQUEST = _http2_request()
_TEMPLATE: Final = (
    b"{% for m in messages %}{{ m['role'] ~ bos_token }}{% if m.content %}{{ m.content|trim }}{% endif %}{% endfor %}"
)
_WORDS: Final = b"\x81\x85\0\0\0\0hello"
SEEDS: Final[dict[Target, tuple[bytes, ...]]] = {
    plain_head: (HEAD + b'{"prompt":1}',),
    http1: (HEAD + b'{"prompt":1}', b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", HEAD.replace(b"POST", b"PUT") + b"x" * 12),
    http2: (_REQUEST,),
    websocket: (_WORDS, b"\x01\x81\0\0\0\0a\x80\x81\0\0\0\0b\x89\x80\0\0\0\0" + _WORDS, b"\x88\x82\0\0\0\0\x03\xe8"),
    json_body: (_CHAT, b'{"prompt":["A",[1]],"stream":false}', b'{"model":"m","input":"A","max_tokens":3}'),
    socket_frame: tuple(map(msgspec.json.encode, (Auth(api_key="k"), CreditFrame(id="a", tokens=1)))),
    link: (_frame(Pong(progress=1)) + _frame(StepDone(step=1, rows=(), duration=0.1, model_duration=0.1)),),
    template: (_TEMPLATE,),
}  # fmt: skip
TARGETS: Final[dict[str, Target]] = {target.__name__: target for target in SEEDS}

"""More than 600 inputs that a client must not send: heads, bodies, schemas, templates, adapters, HTTP/2 and WebSocket.

Each is bytes for a new connection. They follow advisories against inference servers and HTTP libraries, and the
mutations that fuzzers find first. Pure.
"""

import json
from collections.abc import Iterator
from itertools import product
from typing import Any, Final

from msgspec import Struct

CHAT: Final = "/v1/chat/completions"
PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HANDSHAKE: Final = (
    b"GET /v1/stream HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
ASKS: Final[dict[str, Any]] = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}  # Any: JSON


class Hostile(Struct, frozen=True):
    surface: str
    name: str
    data: bytes


def inputs() -> Iterator[Hostile]:
    yield from _heads()
    yield from _bodies()
    yield from _fields()
    yield from _grammars()
    yield from _http2()
    yield from _websocket()


def post(body: bytes, path: str = CHAT, fields: bytes = b"Content-Type: application/json\r\n") -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len(body)}\r\n".encode()
    return head + fields + b"\r\n" + body


def _heads() -> Iterator[Hostile]:
    ask = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n".encode()
    lengths = [b"-1", b"+5", b"0x10", b"5,5", b"1e1", b"9" * 20, b"", b" ", b"5 5", b"5\r\nContent-Length: 6", b"\xb2"]
    codings = [
        b"gzip",
        b"chunked, chunked",
        b"identity",
        b"xchunked",
        b"chunked;q=1",
        b"\x0bchunked",
        b"chunked\r\nTe: x",
    ]
    chunks = [b"ZZZ", b"-1", b"F" * 17, b"", b"1;" + b"a" * 10**6, b"0x1", b"1 ", b"1\n", b"\xff", b"7fffffffffffffff"]
    lines = [
        b"get / HTTP/1.1", b"G\xcbT / HTTP/1.1", b"G T / HTTP/1.1", b"\x00 / HTTP/1.1", b"A" * 300 + b" / HTTP/1.1",
        b"CONNECT x:1 HTTP/1.1", b"TRACE / HTTP/1.1", b"OPTIONS * HTTP/1.1", b"PRI * HTTP/2.0", b"GET / HTTP/0.9",
        b"GET / HTTP/1.2", b"GET / HTTP/9.9", b"GET / HTTP/1.1 ", b"GET / http/1.1", b"GET /", b"GET  / HTTP/1.1", b"",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"SSH-2.0-OpenSSH_9.2p1", b"\x80\x2e\x01\x00\x02",
        b"*1\r\n$4\r\nINFO",
    ]  # fmt: skip
    targets = [
        b"/%ff%00%0d%0aX", b"http://elsewhere/v1/models", b"x:80", b"*", b"/" + b"a" * 65536, b"//v1/models",
        b"/../etc",
        b"/V1/models", b"/v1%2fmodels", b"/v1/models/..%2f..", b"\\v1\\models", b"/\xff\xfe", b"/%",
        b"/?" + b"a=&" * 5000,
        b"/v1/models/" + b"x" * 8000, b"/v1/models#x", b"?", b"/static/../../x", b"/static/%2e%2e/%2e%2e/x",
    ]  # fmt: skip
    fields = [
        b"Host: y", b"X y: 1", b"X\x00: 1", b"no colon", b" folded: 1", b": 1", b"X: \x00", b"X: \xff\xfe",
        b"X: a\rb", b"X: a\nb",
        b"X" * 60_000 + b": 1", b"X: " + b"x" * 20_000, b"\r\n".join(b"X-%d: 1" % n for n in range(1000)),
        b"Authorization: Bearer a\r\nauthorization: Bearer b", b"Expect: 200-ok",
        b"Upgrade: h2c\r\nHTTP2-Settings: !!!!",
        b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c", b"Upgrade: websocket",
        b"Origin: https://evil.example", b"Origin: null", b"X-Request-Id: ../../x", b"X-Request-Timeout: nan",
        b"X-Request-Timeout: -1", b"X-Request-Timeout: 1e999", b"Content-Length: 4\r\nTransfer-Encoding: chunked",
        b"Connection: keep-alive, close, x", b"Range: bytes=0-9999999999", b"Cookie: " + b"a=b;" * 3000,
    ]  # fmt: skip
    media = [
        b"text/plain", b"multipart/form-data", b"application/json;charset=utf-16", b"application/x-www-form-urlencoded",
        b"application/json\r\nContent-Encoding: gzip", b"application/json\r\nContent-Encoding: br", b"\xff",
        b"application/json\r\nContent-Encoding: deflate", b"application/json\r\nContent-Encoding: zstd", b"a" * 5000,
    ]  # fmt: skip
    yield from (
        Hostile("head", f"length {n}", ask + b"Content-Length: " + v + b"\r\n\r\n{}") for n, v in enumerate(lengths)
    )
    yield from (
        Hostile("head", f"coding {n}", ask + b"Transfer-Encoding: " + v + b"\r\n\r\n0\r\n\r\n")
        for n, v in enumerate(codings)
    )
    for number, chunk in enumerate(chunks):
        yield Hostile(
            "head", f"chunk {number}", ask + b"Transfer-Encoding: chunked\r\n\r\n" + chunk + b"\r\nA\r\n0\r\n\r\n"
        )
    yield Hostile("head", "a million chunks", ask + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\nA\r\n" * 10**6)
    yield from (Hostile("head", f"line {n}", v + b"\r\nHost: localhost\r\n\r\n") for n, v in enumerate(lines))
    yield from (
        Hostile("head", f"target {n}", b"GET " + v + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
        for n, v in enumerate(targets)
    )
    yield from (
        Hostile("head", f"field {n}", b"GET / HTTP/1.1\r\nHost: localhost\r\n" + v + b"\r\n\r\n")
        for n, v in enumerate(fields)
    )
    yield from (
        Hostile("head", f"host {n}", b"GET / HTTP/1.1\r\n" + v + b"\r\n\r\n")
        for n, v in enumerate(
            [b"", b"Host:", b"Host: a b", b"Host: x:99999", b"Host: \xc3\xa9", b"Host: " + b"h" * 5000]
        )
    )
    for number, kind in enumerate(media):
        yield Hostile(
            "head", f"media {number}", post(json.dumps(ASKS).encode(), fields=b"Content-Type: " + kind + b"\r\n")
        )
    yield Hostile("head", "ten thousand pipelined", b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n" * 10_000)
    yield Hostile("head", "LF alone", b"GET / HTTP/1.1\nHost: x\n\n")


def _bodies() -> Iterator[Hostile]:
    """Of every endpoint that reads JSON."""
    bodies = {
        "empty": b"",
        "open": b"{", "list": b"[]", "null": b"null", "number": b"1", "text": b'"x"', "BOM": b"\xef\xbb\xbf{}",
        "deep lists": b"[" * 10**6, "deep objects": b'{"a":' * 10**5, "UTF-8": b'{"model":"\xff\xfe"}',
        "surrogate": b'{"model":"\\ud800"}', "NaN": b'{"temperature":NaN}', "Infinity": b'{"max_tokens":1e999}',
        "digits": b'{"seed":' + b"9" * 10**6 + b"}", "keys": json.dumps({f"k{n}": n for n in range(200_000)}).encode(),
        "twice": b'{"model":"a","model":"b"}', "rest": b"{}{}", "NUL": b"{}\x00",
        "unknown": b'{"__class__":{"__init__":1}}',
        "most": b'{"model":"' + b"x" * 5_000_000 + b'"}', "escapes": b'{"model":"' + b"\\u0000" * 600_000 + b'"}',
    }  # fmt: skip
    paths = [
        CHAT, "/v1/completions", "/v1/messages", "/v1/responses", "/v1/embeddings", "/api/chat", "/tokenize",
        "/detokenize",
        "/v1/load_lora_adapter",
    ]  # fmt: skip
    for path, (name, body) in product(paths, bodies.items()):
        yield Hostile("body", f"{name} to {path}", post(body, path))


def _fields() -> Iterator[Hostile]:
    """One wrong value in a request that is otherwise right."""
    names = [
        "n", "best_of", "max_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "stop", "logit_bias",
        "logprobs",
        "top_logprobs", "stream", "stream_options", "presence_penalty", "repetition_penalty", "messages", "tools",
        "tool_choice", "response_format", "model", "cache_salt", "chat_template", "chat_template_kwargs",
    ]  # fmt: skip
    nested: Any = 1  # Any: JSON
    for _ in range(90):
        nested = {"a": [nested]}
    values: list[Any] = [  # Any: JSON
        None,
        "x",
        -1,
        2**63,
        1e308,
        [],
        {},
        [[]],
        nested,
        "x" * 10**6,
        ["x"] * 10**5,
        {"a": 10**6, "1": "x"},
    ]
    for name, (number, value) in product(names, enumerate(values)):
        yield Hostile("field", f"{name} {number}", post(json.dumps(ASKS | {name: value}).encode()))
    prompts: list[Any] = [  # Any: JSON
        [-1], [2**31], [2**63], [True], [1.5], [[1], "x"], [""], "", [], [[]], ["x"] * 5000, [1] * 10**5, "a" * 10**6,
        " " * 10**6,
        "=" * 10**6, "e\u0301" * 10**5, "\U0001f468\u200d" * 10**5, "<|im_start|>" * 10**4, "\x00", "\ufeff" * 10**5,
    ]  # fmt: skip
    for number, prompt in enumerate(prompts):
        yield Hostile(
            "prompt", f"{number}", post(json.dumps({"prompt": prompt, "max_tokens": 1}).encode(), "/v1/completions")
        )
    roles: list[Any] = [  # Any: JSON
        [{"role": "tool", "content": "x"}], [{"role": "assistant", "content": None}], [{"role": "x", "content": "y"}],
        [{"role": "user", "content": "x", "name": "a\nb"}], [{"role": "user"}] * 10_000,
        [{"role": "user", "content": [{"type": "x"}]}],
    ]  # fmt: skip
    images = ("http://127.0.0.1", "http://169.254.169.254", "file:///etc/passwd", "gopher://x", "data:image/png,A")
    parts = ({"type": "image_url", "image_url": {"url": url}} for url in images)
    roles += [[{"role": "user", "content": [part]}] for part in parts]
    for number, messages in enumerate(roles):
        yield Hostile("messages", f"{number}", post(json.dumps(ASKS | {"messages": messages}).encode()))
    for path in ("../../etc", "/etc/passwd", "/dev/zero", "/proc/self/mem", "x" * 5000, "a\x00b", "", "."):
        body = json.dumps({"lora_name": "x", "lora_path": path}).encode()
        yield Hostile("adapter", path[:20], post(body, "/v1/load_lora_adapter"))


def _grammars() -> Iterator[Hostile]:
    deep: Any = {"type": "string"}  # Any: JSON
    for _ in range(200):
        deep = {"type": "object", "properties": {"a": deep}, "required": ["a"]}
    schemas: list[Any] = [
        {"$ref": "#"}, {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}, deep,
        {"$ref": "http://169.254.169.254/"}, {"$ref": "file:///etc/passwd"}, {"type": "x"}, {"enum": []},
        {"enum": list(range(50_000))},
        {"type": "string", "maxLength": 10**9}, {"type": "string", "minLength": 10**9},
        {"type": "array", "minItems": 10**6},
        {"type": "array", "items": False, "minItems": 1}, {"allOf": [{"type": "string"}, {"type": "integer"}]},
        {"not": {}},
        {"anyOf": [{"type": "object", "properties": {f"k{n}": {}}} for n in range(3000)]},
        {"type": "number", "multipleOf": 1e-300},
        {"type": "object", "properties": {f"k{n}": {"type": "string"} for n in range(5000)}},
        {"patternProperties": {"(": {}}},
        {"oneOf": [{"const": "a" * n} for n in range(500)]}, {"type": "integer", "minimum": 2**70},
        {"uniqueItems": True}, [], 1, "x",
    ]  # fmt: skip
    patterns = [
        "(a+)+$",
        "(?=a)",
        r"(a)\1",
        "(",
        "",
        r"\p{L}{1000,2000}",
        "a{1,100000}",
        "(a|b|ab)*c",
        "[",
        "(?i)x" * 1000,
        ".*" * 200,
    ]
    schemas += [{"type": "string", "pattern": pattern} for pattern in patterns]
    for number, schema in enumerate(schemas):
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        yield Hostile("schema", f"{number}", post(json.dumps(ASKS | {"response_format": form}).encode()))
    outputs: list[Any] = [
        *({"regex": pattern} for pattern in patterns), {}, "", {"regex": "a", "json": {}},
        {"grammar": "start: start start"},
        {"grammar": "start: x"}, {"grammar": "x" * 10**5}, {"grammar": 'start: "a"~1..100000'}, {"choice": []},
        {"backend": "x"},
        {"choice": ["x" * n for n in range(2000)]}, {"grammar": "start: /(/"}, {"json_object": 1},
    ]  # fmt: skip
    for number, output in enumerate(outputs):
        yield Hostile("grammar", f"{number}", post(json.dumps(ASKS | {"structured_outputs": output}).encode()))


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """An HTTP/2 frame; a stream's number may have its reserved bit."""
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def _http2() -> Iterator[Hostile]:
    begin = PREFACE + frame(4, 0, 0)
    get = b"\x82\x86\x84\x41\x09localhost"  # GET, http, /, authority
    for kind, (flags, stream, size) in product(
        range(13), [(0, 0, 0), (255, 0, 1), (0, 1, 1), (255, 1, 5), (4, 2**31, 16384)]
    ):
        yield Hostile(
            "h2", f"type {kind} flags {flags} on {stream}, {size}", begin + frame(kind, flags, stream, bytes(size))
        )
    blocks = {
        "path": b"\x82\x86\x04\x02/\xff", "method": b"\x02\x03G\xcbT\x86\x84", "CONNECT": b"\x02\x07CONNECT\x41\x03x:1",
        "upper": get + b"\x40\x01X\x01y", "no path": b"\x82\x86", "twice": get + b"\x84",
        "late": b"\x40\x01a\x01b" + get,
        "index": b"\xff\xff\xff\xff\x7f", "length": b"\x82\x86\x44\x7f\xff\xff\xff\x7f",
        "size": b"\x3f\xe1\xff\xff\xff\x7f" + get,
        "bomb": get + b"\x40\x01a\x7f\x81\x1e" + b"x" * 4000 + b"\xbe" * 4000, "Huffman": b"\x82\x86\x44\x81\xff",
        "empty": b"",
    }  # fmt: skip
    for name, block in blocks.items():
        yield Hostile("h2", f"headers: {name}", begin + frame(1, 5, 1, block))
    floods = {
        "pings": frame(6, 0, 0, bytes(8)), "ping answers": frame(6, 1, 0, bytes(8)), "settings": frame(4, 0, 0),
        "settings answers": frame(4, 1, 0), "unknown": frame(0xEE, 0, 0), "windows": frame(8, 0, 0, b"\0\0\0\1"),
        "empty data": frame(0, 0, 1),
        "header tables": frame(4, 0, 0, b"\0\1\0\0\0\0"), "resets": frame(3, 0, 1, bytes(4)),
        "PRIORITY": frame(2, 0, 3, bytes(5)),
    }  # fmt: skip
    for name, one in floods.items():
        yield Hostile("h2", f"5,000 {name}", begin + frame(1, 4, 1, get) + one * 5000)
    resets = b"".join(frame(1, 5, n, get) + frame(3, 0, n, bytes(4)) for n in range(1, 6000, 2))
    priorities = b"".join(frame(2, 0, n, bytes(5)) for n in range(3, 2005, 2))
    yield Hostile("h2", "3,000 streams reset at once", begin + resets)
    yield Hostile("h2", "1,001 PRIORITY", begin + priorities)
    yield Hostile(
        "h2", "endless CONTINUATION", begin + frame(1, 0, 1, get) + frame(9, 0, 1, b"\x40\x01a\x01b" * 200) * 500
    )
    yield Hostile("h2", "window over 2^31", begin + frame(8, 0, 0, b"\x7f\xff\xff\xff") * 2)
    yield Hostile("h2", "settings", begin + frame(4, 0, 0, b"\0\4\xff\xff\xff\xff" + b"\0\5\0\0\0\0"))


def _websocket() -> Iterator[Hostile]:
    def text(data: bytes, first: int = 0x81, size: bytes | None = None) -> bytes:
        long = b"\xfe" + len(data).to_bytes(2, "big") if len(data) < 65536 else b"\xff" + len(data).to_bytes(8, "big")
        return bytes([first]) + (size or (bytes([0x80 | len(data)]) if len(data) < 126 else long)) + bytes(4) + data

    for first in (*range(16), *range(0x80, 0x90), 0xC1, 0xA1, 0x91, 0xF9):
        yield Hostile("ws", f"first byte {first:02x}", HANDSHAKE + text(b"{}", first))
    sizes = {
        "unmasked": b"\x02",
        "2^63": b"\xff\xff" + bytes(7),
        "2^62": b"\xff\x3f" + b"\xff" * 7,
        "long form": b"\xfe\0\2",
    }
    yield from (Hostile("ws", name, HANDSHAKE + text(b"{}", size=size)) for name, size in sizes.items())
    yield Hostile("ws", "byte after the upgrade", HANDSHAKE + b"\x81")
    yield Hostile("ws", "protocol", HANDSHAKE.replace(b"\r\n\r\n", b"\r\nSec-WebSocket-Protocol: \xff\xfe\r\n\r\n"))
    yield Hostile("ws", "5,000 pings", HANDSHAKE + text(b"", 0x89) * 5000)
    yield Hostile("ws", "5,000 fragments", HANDSHAKE + text(b"a", 0x01) + text(b"a", 0x00) * 5000)
    yield Hostile("ws", "close with one byte", HANDSHAKE + text(b"\x03", 0x88))
    create = {"type": "create", "id": "a", "request": ASKS}
    messages: list[Any] = [  # Any: JSON
        1, [], None, {"id": "a"}, {"type": "x"}, {"type": "create"}, create | {"id": ""},
        create | {"id": "x" * 10**5}, create | {"request": 1},
        create | {"credit": -1}, create | {"credit": 2**70}, {"type": "credit", "id": "a", "tokens": 2**63},
        create | {"x": 1},
        {"type": "cancel", "id": "none"}, {"type": "resume", "id": "none"}, {"type": "auth", "key": 1},
        {"type": "credit", "id": "a"},
    ]  # fmt: skip
    yield from (Hostile("ws", f"message {n}", HANDSHAKE + text(json.dumps(m).encode())) for n, m in enumerate(messages))
    for name, data in {
        "UTF-8": b"\xff\xfe",
        "deep": b"[" * 10**6,
        "open": b"{",
        "large": b'"' + b"x" * 5 * 10**6 + b'"',
    }.items():
        yield Hostile("ws", f"text: {name}", HANDSHAKE + text(data))
    yield Hostile("ws", "600 creates", HANDSHAKE + text(json.dumps(create).encode()) * 600)

"""Frames of a WebSocket: the spliced ones equal the encoded ones, and the framing is wsproto's."""

import msgspec
import pytest
from wsproto.connection import Connection, ConnectionType
from wsproto.events import TextMessage

from triolet.protocol.events import CallStart, PromptTokens, StreamEvent, Token, TokenLogprob
from triolet.protocol.stream_frames import TokenFrame
from triolet.web.routes.frames import Frames
from triolet.web.transport.websocket import text_frame

ODD = 'a "quote", a \\, a\nline, ü, 😀, \u2028, \x7f and "text":""'


def encoded(name: str, seq: int, token: Token) -> bytes:
    frame = TokenFrame(id=name, seq=seq, index=token.index, kind=token.kind, text=token.text, tokens=token.tokens)
    return msgspec.json.encode(msgspec.structs.replace(frame, call=0) if token.kind == "tool" else frame)


@pytest.mark.parametrize("name", ["r1", ODD, "%d %b"])
@pytest.mark.parametrize("text", ["a", "", ODD, "\x00", "%b%d"])
def test_spliced_frames_equal_encoded_ones(name: str, text: str) -> None:
    frames = Frames(name, 200)
    tokens = [
        Token(id="r", index=index, text=text, tokens=index + 1, kind=kind)
        for index in (0, 1, 63, 64, 199)
        for kind in ("text", "reasoning", "tool")
    ]
    assert [frames.encode((token,)) for token in tokens] == [
        [encoded(name, seq, token)] for seq, token in enumerate(tokens)
    ]


def test_a_text_of_several_tokens_is_one_frame_and_scores_are_kept() -> None:
    frames = Frames("r1", 1)
    scored = Token(id="r", index=0, text="a", tokens=1, logprobs=(TokenLogprob(token_id=1, logprob=-1.0, text=b"a"),))
    assert msgspec.json.decode(frames.encode((scored,))[0])["logprobs"]["content"][0]["logprob"] == -1.0
    plain = Token(id="r", index=0, text="b", tokens=2)
    (joined,) = frames.encode((plain, plain))
    assert joined == encoded("r1", 1, Token(id="r", index=0, text="bb", tokens=4))


def test_the_ids_of_prompt_and_answer_come_with_it() -> None:
    events: list[StreamEvent] = [
        PromptTokens(id="r", index=1, token_ids=(5, 6)),
        Token(id="r", index=1, text="a", tokens=1, token_ids=(7,)),
        Token(id="r", index=1, text="b", tokens=1, token_ids=(8,)),
        Token(id="r", index=0, text="c", tokens=1),
    ]
    prompt, joined, plain = [msgspec.json.decode(frame) for frame in Frames("r1", 2).encode(events)]
    assert prompt == {"type": "prompt", "id": "r1", "seq": 0, "index": 1, "token_ids": [5, 6]}
    assert (joined["text"], joined["token_ids"]) == ("ab", [7, 8])
    assert "token_ids" not in plain


def test_pieces_of_different_calls_and_kinds_are_not_joined() -> None:
    begins = [CallStart(call=call, id=f"call_{call}", name="f") for call in range(2)]
    events: list[StreamEvent] = [
        Token(id="r", index=0, text="so", tokens=1, kind="reasoning"),
        Token(id="r", index=0, text="", tokens=1, kind="tool", call=0, starts=begins[0]),
        Token(id="r", index=0, text="{", tokens=1, kind="tool", call=0),
        Token(id="r", index=0, text="}", tokens=2, kind="tool", call=0),
        Token(id="r", index=0, text="{}", tokens=1, kind="tool", call=1, starts=begins[1]),
    ]
    frames = [msgspec.json.decode(frame) for frame in Frames("r1", 1).encode(events)]
    assert [(frame["kind"], frame["text"], frame["tokens"], frame.get("call")) for frame in frames] == [
        ("reasoning", "so", 1, None), ("tool", "{}", 4, 0), ("tool", "{}", 1, 1),
    ]  # fmt: skip
    assert [frame.get("begins") for frame in frames] == [
        None,
        {"id": "call_0", "name": "f"},
        {"id": "call_1", "name": "f"},
    ]


@pytest.mark.parametrize("length", [0, 1, 125, 126, 127, 65535, 65536, 70000])
def test_the_framing_is_that_of_wsproto(length: int) -> None:
    text = "x" * length
    assert text_frame(text.encode()) == Connection(ConnectionType.SERVER).send(TextMessage(data=text))

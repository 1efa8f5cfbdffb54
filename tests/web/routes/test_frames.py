"""Frames of a WebSocket: the spliced ones equal the encoded ones, and the framing is wsproto's."""

import msgspec
import pytest
from wsproto.connection import Connection, ConnectionType
from wsproto.events import TextMessage

from triolet.protocol.events import Token, TokenLogprob
from triolet.protocol.stream_frames import TokenFrame
from triolet.web.routes.frames import Frames
from triolet.web.transport.websocket import text_frame

ODD = 'a "quote", a \\, a\nline, ü, 😀, \u2028, \x7f and "text":""'


def encoded(name: str, seq: int, token: Token) -> bytes:
    return msgspec.json.encode(
        TokenFrame(id=name, seq=seq, index=token.index, kind=token.kind, text=token.text, tokens=token.tokens)
    )


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


@pytest.mark.parametrize("length", [0, 1, 125, 126, 127, 65535, 65536, 70000])
def test_the_framing_is_that_of_wsproto(length: int) -> None:
    text = "x" * length
    assert text_frame(text.encode()) == Connection(ConnectionType.SERVER).send(TextMessage(data=text))

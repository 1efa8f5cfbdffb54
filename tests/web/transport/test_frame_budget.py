"""What small HTTP/2 frames cost, and where a client's bytes are cut."""

import hyperframe.frame
import pytest

from triolet.web.transport.frame_budget import PIECE_FRAMES, FrameCutter

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
END = ["END_HEADERS", "END_STREAM"]


def data(length: int) -> bytes:
    return hyperframe.frame.DataFrame(1, b"x" * length).serialize()


def headers(stream: int) -> bytes:
    return hyperframe.frame.HeadersFrame(stream, b"abc", flags=END).serialize()


@pytest.mark.parametrize(
    ("frame", "price"),
    [
        (headers(1), 0.0),
        (headers(1) + headers(1), 1.0),  # trailers
        (headers(3) + headers(1), 1.0),
        (data(0), 1.0),
        (data(512), 0.5),
        (data(1024), 0.0),
        (data(16384), 0.0),
        (hyperframe.frame.SettingsFrame(0, flags=["ACK"]).serialize(), 1.0),
        (hyperframe.frame.PingFrame(0, b"8 bytes.").serialize(), 1.0),
        (hyperframe.frame.WindowUpdateFrame(1, 5).serialize(), 1.0),
        (hyperframe.frame.RstStreamFrame(1).serialize(), 1.0),
        (bytes(3) + b"\xee" + bytes(5), 1.0),
    ],
)
def test_a_frame_that_brings_little_has_a_price(frame: bytes, price: float) -> None:
    cutter = FrameCutter()
    assert sum(cost for _, cost in cutter.cut(PREFACE + frame)) == pytest.approx(price)


@pytest.mark.parametrize("read", [1, 7, 100, 10**6])
def test_every_byte_passes_in_order_in_pieces_of_a_few_frames(read: int) -> None:
    sent = PREFACE + headers(1) + data(3000) + data(1) * 100 + headers(3) + data(0) * 50
    cutter = FrameCutter()
    cut = [piece for at in range(0, len(sent), read) for piece in cutter.cut(sent[at : at + read])]
    assert b"".join(piece for piece, _ in cut) == sent
    assert sum(price for _, price in cut) == pytest.approx(100 * (1 - 1 / 1024) + 50)
    assert max(price for _, price in cut) <= PIECE_FRAMES

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triolet.loadtest.client.body import (
    LONGEST_SIZE_LINE,
    BadBody,
    ChunkedBody,
    CountedBody,
    EventStream,
    OpenBody,
)


def _cut(data: bytes, cuts: list[int]) -> list[bytes]:
    places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[begin:end] for begin, end in pairwise(places)]


CUTS = st.lists(st.integers(0, 10_000), max_size=20)


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=10), CUTS, st.booleans())
def test_chunks_are_put_together_however_they_are_cut(parts: list[bytes], cuts: list[int], trailers: bool) -> None:
    data = b"".join(b"%x;ext=1\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n"
    data += b"x-trailer: y\r\n\r\n" if trailers else b"\r\n"
    body, found = ChunkedBody(), b""
    for piece in _cut(data, cuts):
        assert not body.complete or not piece
        found += body.feed(piece)
    assert found == b"".join(parts)
    assert body.complete
    assert body.end()


@given(CUTS)
def test_a_chunked_body_that_breaks_off_is_not_whole(cuts: list[int]) -> None:
    data = b"5\r\nhello\r\n0\r\n\r\n"
    body = ChunkedBody()
    for piece in _cut(data[:-1], cuts):
        body.feed(piece)
    assert not body.end()


@pytest.mark.parametrize(
    "data",
    [b"zz\r\n", b"-5\r\nhello\r\n", b"5\r\nhello!\r\n", b"\r\n", b"0x5\r\nhello", b"1" * (LONGEST_SIZE_LINE + 1)],
)
def test_bytes_that_are_no_chunks_are_refused(data: bytes) -> None:
    with pytest.raises(BadBody):
        ChunkedBody().feed(data)


def test_a_counted_body_has_its_length() -> None:
    body = CountedBody(5)
    assert body.feed(b"abc") == b"abc"
    assert not body.end()
    body.feed(b"de")
    assert body.complete
    with pytest.raises(BadBody, match="beyond"):
        body.feed(b"f")
    assert CountedBody(0).complete
    assert OpenBody().end()


@given(
    st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), min_size=1), max_size=8),
    CUTS,
    st.sampled_from(["\n", "\r\n"]),
)
def test_events_come_whole_however_they_are_cut(texts: list[str], cuts: list[int], end: str) -> None:
    stream = "".join(f": a comment{end}{end}data: {text}{end}{end}" for text in texts).encode()
    events = EventStream()
    found = [event for piece in _cut(stream, cuts) for event in events.feed(piece)]
    assert found == [text.encode() for text in texts]


def test_other_fields_are_left_out_and_lines_of_data_are_joined() -> None:
    assert EventStream().feed(b"event: x\nid: 1\ndata: a\ndata:b\n\n: keep-alive\n\nretry: 3\n\n") == [b"a\nb"]

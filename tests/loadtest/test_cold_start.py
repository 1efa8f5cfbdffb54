"""The clock of a cold start stops at the first text, not at the role that comes before it."""

from triolet.loadtest.cold_start import first_token_of

ROLE = b'data: {"choices": [{"delta": {"role": "assistant", "content": ""}}]}\n'
TEXT = b'data: {"choices": [{"delta": {"content": "5"}}]}\n'
END = b"data: [DONE]\n"


def test_stops_at_the_first_text() -> None:
    lines = [b": keep-alive\n", ROLE, b"\n", TEXT, b"\n"]
    assert first_token_of(lines)


def test_an_answer_without_text_has_no_first_token() -> None:
    assert not first_token_of([ROLE, b"\n", END])

"""The clock of a cold start stops at the first text, not at the role that comes before it."""

from triolet.loadtest.cold_start import has_text

ROLE = b'{"choices": [{"delta": {"role": "assistant", "content": ""}}]}'
TEXT = b'{"choices": [{"delta": {"content": "5"}}]}'


def test_stops_at_the_first_text() -> None:
    assert [has_text(event) for event in (ROLE, TEXT, b"[DONE]")] == [False, True, False]

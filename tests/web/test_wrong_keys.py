"""Wrong keys by address: so many a minute, in a table that does not grow."""

from hashlib import sha256

import pytest
import trio
from trio.testing import MockClock

from triolet.protocol.errors import ApiError
from triolet.web import wrong_keys
from triolet.web.auth import Keys
from triolet.web.errors import WRONG_KEY_SECONDS
from triolet.web.origins import Origins
from triolet.web.wrong_keys import MOST, WrongKeys


def codes(wrong: WrongKeys, address: str | None, count: int, now: float) -> list[str]:
    return [wrong.refusal(address, "Wrong.", now).code for _ in range(count)]


def test_so_many_a_minute_are_wrong_and_the_next_are_too_many() -> None:
    wrong = WrongKeys()
    assert codes(wrong, "10.0.0.1", MOST + 2, 5.0) == ["invalid_api_key"] * MOST + ["too_many_wrong_keys"] * 2
    assert codes(wrong, "10.0.0.2", 1, 5.0) == ["invalid_api_key"]
    refusal = wrong.refusal("10.0.0.1", "Wrong.", 5.0)
    assert (refusal.status, refusal.retry_after) == (429, 60 // MOST)
    again = 5.0 + 60 / MOST
    assert codes(wrong, "10.0.0.1", 2, again) == ["invalid_api_key", "too_many_wrong_keys"]


def test_a_unix_socket_has_no_address() -> None:
    assert set(codes(WrongKeys(), None, 3 * MOST, 0.0)) == {"invalid_api_key"}


def test_the_address_that_was_quiet_longest_is_forgotten() -> None:
    wrong = WrongKeys()
    codes(wrong, "first", MOST, 0.0)
    codes(wrong, "second", MOST, 0.0)
    for number in range(wrong_keys.ADDRESSES - 1):
        codes(wrong, "first", 1, 0.0)
        codes(wrong, f"{number}", 1, 0.0)
    assert codes(wrong, "first", 1, 0.0) == ["too_many_wrong_keys"]
    assert codes(wrong, "second", 1, 0.0) == ["invalid_api_key"]


async def test_a_wrong_key_in_a_frame_is_answered_late_and_a_right_one_at_once(autojump_clock: MockClock) -> None:
    keys = Keys([sha256(b"right").hexdigest()], Origins((), None))
    began = trio.current_time()
    assert await keys.tenant_of_frame("right", "10.0.0.1")
    assert trio.current_time() == began
    with pytest.raises(ApiError, match="wrong"):
        await keys.tenant_of_frame("wrong", "10.0.0.1")
    assert trio.current_time() - began == pytest.approx(WRONG_KEY_SECONDS)

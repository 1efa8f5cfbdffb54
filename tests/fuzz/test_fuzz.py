"""The parsers' fuzz targets: seeds are read, hypothesis finds nothing in a moment, and a planted fault is found."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from .server import answered
from .targets import HEAD, SEEDS, TARGETS, Target, mutated


@pytest.mark.parametrize("name", TARGETS)
def test_a_seed_is_read(name: str) -> None:
    target = TARGETS[name]
    for seed in SEEDS[target]:
        target(seed)


@pytest.mark.parametrize("name", TARGETS)
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32), data=st.binary(max_size=200))
def test_what_is_near_a_seed_or_far_from_all_is_read_or_refused(name: str, seed: int, data: bytes) -> None:
    target, rng = TARGETS[name], random.Random(seed)
    target(mutated(rng, rng.choice(SEEDS[target])))
    target(data)


def test_the_simulated_connection_answers_as_a_real_one() -> None:
    """Else a target that is refused at its first byte would show nothing."""
    assert answered(HEAD + b'{"prompt":1}').startswith(b"HTTP/1.1 200 OK\r\n")
    assert answered(HEAD + b'{"prompt":1}').endswith(b'{"prompt":1}')
    assert answered(b"GET /nowhere HTTP/1.1\r\nHost: x\r\n\r\n").endswith(b"\r\nhello\r\n0\r\n\r\n")
    assert b" 400 " in answered(b"GET / HTTP/1.1\nHost: x\n\n")


def test_a_fault_of_the_transport_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("triolet.web.transport.strict_head.head_fault", None)
    target: Target = TARGETS["http1"]
    with pytest.raises(AssertionError, match="connection closed after an error"):
        target(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")

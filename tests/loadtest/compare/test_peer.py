"""Peers are real processes here: short programs that speak the protocol, or break it."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from triolet.cli.refusals import Refusal
from triolet.loadtest.compare.cases import Case
from triolet.loadtest.compare.peer import Peer, read_peer, run_peer

CASE = Case(name="pair", title="", prompt_tokens=4, output_tokens=2, batch=2, repeats=3, figure="full_batch_tok_s")
HELLO = 'print(json.dumps({"engine": "e", "precision": "p8", "bits": 8, "versions": {"e": "1"}}), flush=True)\n'
GOOD = """
for case in asked["cases"]:
    for _ in range(case["repeats"]):
        times = [[1.0 + 0.5 * i for i in range(case["output_tokens"])]] * case["batch"]
        print(json.dumps({"case": case["name"], "times": times}))
"""

MakePeer = Callable[[str], Peer]


@pytest.fixture
def make_peer(tmp_path: Path) -> MakePeer:
    def make(program: str) -> Peer:
        path = tmp_path / "peer.py"
        path.write_text(f"import json, sys\nasked = json.load(sys.stdin)\n{program}")
        return Peer("other", (sys.executable, str(path)))

    return make


def test_a_turn_gives_every_repetition(make_peer: MakePeer) -> None:
    seen: list[None] = []
    about, values = run_peer(make_peer("print('loading…')\n" + HELLO + GOOD), [CASE], 2, lambda: seen.append(None))
    assert (about.engine, about.precision, about.bits, about.versions) == ("e", "p8", 8, {"e": "1"})
    assert values == {"pair": [4.0, 4.0, 4.0]}  # two tokens within half a second
    assert len(seen) == 3


def test_it_is_told_the_load_and_the_threads(make_peer: MakePeer) -> None:
    told = 'assert asked["threads"] == 3 and asked["cases"][0]["prompt_tokens"] == 4, asked\n'
    run_peer(make_peer(told + HELLO + GOOD), [CASE], 3, lambda: None)


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("sys.exit('no such model')", r"ended without(.|\n)*exit status 1(.|\n)*no such model"),
        (HELLO, "ended without pair"),
        (HELLO + 'print(json.dumps({"case": "other", "times": [[1.0]]}))', "not asked for"),
        (HELLO + 'print(json.dumps({"case": "pair", "times": [[1.0, 2.0]]}))', "expected 2 sequences of 2 times"),
        ('print(json.dumps({"engine": "e"}), flush=True)\nimport time; time.sleep(600)', "precision"),
        (HELLO + "print('{broken')", "malformed"),
    ],
)
def test_what_breaks_the_protocol_is_refused_with_its_last_words(
    make_peer: MakePeer, program: str, message: str
) -> None:
    with pytest.raises(Refusal) as refused:
        run_peer(make_peer(program), [CASE], 2, lambda: None)
    assert refused.match(message)
    assert "--peer other" in str(refused.value)


def test_a_command_that_is_not_there() -> None:
    with pytest.raises(Refusal, match="cannot run no-such-program"):
        run_peer(read_peer("other=no-such-program --x"), [CASE], 2, lambda: None)


def test_a_peer_is_a_name_and_a_command() -> None:
    assert read_peer("llama.cpp q8=python 'a b' c") == Peer("llama.cpp q8", ("python", "a b", "c"))
    for text in ("python", "=python", "name=", "name"):
        with pytest.raises(ValueError, match="is not NAME=COMMAND"):
            read_peer(text)

"""The peers' program speaks what `triolet bench peers` reads, a library of that interface in the engine's place."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from triolet.loadtest.compare.cases import Case, round_of, value_of
from triolet.loadtest.compare.peer import read_peer

PEERS = Path(__file__).resolve().parents[2] / "loadtest" / "peers"
LIBRARY = """
import time
from types import SimpleNamespace

__version__ = "9.9"


class Generator:
    def __init__(self, path, device, compute_type, intra_threads, inter_threads):
        assert (compute_type, intra_threads) == ("int8", 3)

    def generate_batch(self, words, *, max_length, min_length, callback, **options):
        assert words[0][:2] == ["w10", "w11"], words
        for step in range(max_length - {missing}):
            time.sleep(0.001)
            for row in range(len(words)):
                assert callback(SimpleNamespace(batch_id=row, step=step)) is False
"""
CASE = Case(name="pair", title="", prompt_tokens=5, output_tokens=4, batch=2, repeats=2, figure="full_batch_tok_s")


def _run(folder: Path, *words: str, missing: int = 0) -> subprocess.CompletedProcess[str]:
    (folder / "ctranslate2.py").write_text(LIBRARY.replace("{missing}", str(missing)))
    (folder / "ct2-int8").mkdir(exist_ok=True)
    (folder / "ct2-int8" / "vocabulary.json").write_text(json.dumps([f"w{index}" for index in range(100)]))
    told = {name: getattr(CASE, name) for name in ("name", "prompt_tokens", "output_tokens", "batch", "repeats")}
    return subprocess.run(
        [sys.executable, str(PEERS), *words], input=json.dumps({"threads": 3, "cases": [told]}), capture_output=True,
        text=True, timeout=60, env={**os.environ, "PYTHONPATH": str(folder)},
    )  # fmt: skip


def test_a_turn_is_a_greeting_and_a_line_for_every_repetition(tmp_path: Path) -> None:
    done = _run(tmp_path, "ctranslate2", str(tmp_path), "--precision", "int8")
    assert done.returncode == 0, done.stderr
    hello, *repetitions = map(json.loads, done.stdout.splitlines())
    assert hello == {"engine": "ctranslate2", "precision": "int8", "bits": 8, "versions": {"ctranslate2": "9.9"}}
    assert [line["case"] for line in repetitions] == ["pair"] * CASE.repeats
    for line in repetitions:
        assert value_of(CASE, round_of(CASE, line["times"])) > 0


def test_too_few_tokens_are_no_measurement(tmp_path: Path) -> None:
    done = _run(tmp_path, "ctranslate2", str(tmp_path), "--precision", "int8", missing=1)
    assert done.returncode != 0
    assert "asked for" in done.stderr


@pytest.mark.parametrize("engine", ["llama.cpp", "openvino", "ctranslate2"])
def test_an_unknown_precision_is_refused_with_those_there_are(tmp_path: Path, engine: str) -> None:
    done = _run(tmp_path, engine, str(tmp_path), "--precision", "int3")
    assert done.returncode == 2
    assert f"{engine} is measured in" in done.stderr


def test_setup_prints_the_options_for_the_comparison(tmp_path: Path) -> None:
    for name in ("q8.gguf", "ov-int8", "ct2-int8"):
        (tmp_path / name).touch()
    command = [sys.executable, str(PEERS / "setup.py"), str(tmp_path), "--only-print"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    found = [read_peer(shlex.split(line)[1]) for line in done.stdout.splitlines()]
    assert [peer.name for peer in found] == ["llama.cpp q8", "openvino int8", "ctranslate2 int8"]
    assert all(peer.command[1:] == (str(PEERS), *peer.command[2:]) for peer in found)
    assert all(peer.command[-2:] == ("--precision", peer.name.split()[1]) for peer in found)

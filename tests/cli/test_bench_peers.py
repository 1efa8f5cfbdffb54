"""`triolet bench peers` as a user runs it: the bundled model, beside a program that stands for another engine."""

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import click
import pytest

from triolet.loadtest.compare.cases import CASES, USUAL
from triolet.loadtest.compare.variant import plain, read_variant

TRIOLET = str(Path(sys.executable).with_name("triolet"))
SLOW_PEER = """
import json, sys
asked = json.load(sys.stdin)
print(json.dumps({"engine": "slow", "precision": "int8", "bits": 8, "versions": {"slow": "0.1"}}))
for case in asked["cases"]:
    for _ in range(case["repeats"]):
        print(json.dumps({"case": case["name"], "times": [[512.0 + i for i in range(case["output_tokens"])]]}))
"""
CASE = [CASES["prefill_512"]]


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([TRIOLET, "bench", "peers", *arguments], capture_output=True, text=True, timeout=300)


def test_a_comparison_writes_everything_it_found(tmp_path: Path) -> None:
    peer, text = tmp_path / "peer.py", tmp_path / "text.txt"
    peer.write_text(SLOW_PEER)
    text.write_text("What is 12 + 30? The sum is 42. " * 6)
    done = _run(
        "--peer", f"slow=/usr/bin/env {sys.executable} {peer}", "--variant", "int8=--quantize int8", "--case",
        "prefill_512", "--rounds", "2", "--text", str(text), "--out", str(tmp_path / "out"), "--name", "small",
        "--threads", "1", "--instances", "1", "--repeats", "3", "--repeats", "3", "--repeats", "3",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "out/small.json").read_text())
    assert [(row["turn"], row["engine"]) for row in found["rows"]] == [
        (0, "int8"),
        (0, "slow"),
        (1, "slow"),
        (1, "int8"),
    ]
    assert [len(row["repeats"]) for row in found["rows"]] == [3] * 4
    assert len(found["read_speeds"]) == 2
    assert all(1e8 < speed < 1e13 for speed in found["read_speeds"])
    values = {(row["turn"], row["engine"]): row["value"] for row in found["rows"]}
    assert values[0, "slow"] == 1.0  # 512 tokens in 512 s
    (ratio,) = found["against_best"]
    assert ratio["turns"] == [values[0, "int8"], values[1, "int8"]]
    assert found["engines"][0]["bits"] == 8
    (tokens,) = found["tokens"]
    assert tokens["tokens"] == tokens["equal_runner"] == 96
    (quality,) = found["quality"]
    assert 0 < quality["kl_mean"] < 0.05
    (exact,) = found["exact"]
    assert exact["instances"] == len(exact["families"]) > 5
    assert exact["right"] / exact["instances"] > 0.5  # the whole file's share is above 0.9
    page = (tmp_path / "out/small.md").read_text()
    assert "| Triolet int8 | 8 |" in page
    assert "| slow | 8 | 1 |" in page
    assert "slow 0.1" in page
    assert "int8" in done.stdout
    picture = ElementTree.parse(tmp_path / "out/small.svg").getroot()
    classes = [bar.get("class") for bar in picture.iter("{http://www.w3.org/2000/svg}rect")]
    assert sorted(filter(None, classes)) == ["ours", "theirs"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--peer", "nothing"), "is not NAME=COMMAND"),
        (("--variant", "int8"), "is not NAME=OPTIONS"),
        (("--variant", "a=--quantize int5"), "int5"),
        (("--variant", "a=", "--variant", "a=--quantize int8"), "two engines are called 'a'"),
        (("no-such-folder",), "no folder no-such-folder"),
    ],
)
def test_what_cannot_run_is_refused_before_anything_does(arguments: tuple[str, ...], message: str) -> None:
    done = _run(*arguments)
    assert done.returncode == 2
    assert message in done.stderr


def test_a_variant_has_the_engine_s_options_and_memory_for_the_cases() -> None:
    variant = read_variant("eight=--quantize int8", None, 2, [CASES[name] for name in USUAL])
    assert (variant.name, variant.settings.quantize, variant.settings.threads) == ("eight", "int8", 2)
    assert variant.settings.max_model_len == 2112  # 2,048 + 1, in blocks of 64
    assert variant.settings.max_running == 16
    told = plain(variant.settings)
    assert told == {"quantize": "int8", "threads": 2, "max_model_len": 2112, "max_running": 16}


def test_a_variant_s_unknown_option_is_named() -> None:
    with pytest.raises(click.UsageError, match="--quantise"):
        read_variant("eight=--quantise int8", None, 2, CASE)

"""`triolet complete` and `triolet bench offline`: an engine of their own in one process."""

import json
import subprocess
import sys
from pathlib import Path

TRIOLET = str(Path(sys.executable).with_name("triolet"))


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([TRIOLET, *arguments], capture_output=True, text=True, timeout=120)


def test_a_chat_model_answers_and_continues_the_bare_text_only_when_told() -> None:
    answer = _run("complete", "What is 123 + 456?", "--max-tokens", "64")
    assert answer.returncode == 0, answer.stderr
    assert "579" in answer.stdout
    bare = _run("complete", "--raw", "What is 123 + 456?", "--max-tokens", "8")
    assert bare.returncode == 0, bare.stderr
    assert bare.stdout != answer.stdout


def test_a_prompt_beyond_the_context_is_an_error_with_its_code() -> None:
    done = _run("complete", "word " * 200, "--max-model-len", "64")
    assert done.returncode == 1
    assert "context_length_exceeded" in done.stderr


def test_bench_offline_measures_every_sequence() -> None:
    load = ("--prompt-tokens", "70", "--output-tokens", "9", "--batch", "3", "--rounds", "2")
    done = _run("bench", "offline", *load, "--quantize", "int8", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["load"] == {"prompt_tokens": 70, "output_tokens": 9, "batch": 3}
    assert result["model"]["quantize"] == "int8"
    assert len(result["rounds"]) == 2
    for figures in (result, *result["rounds"]):
        assert figures["prefill_tok_s"] > 0
        assert figures["decode_tok_s"] > 0
        assert figures["output_tok_s"] > 0
        assert figures["step_ms_p50"] > 0
        assert 0 < figures["outside_model_share"] < 1


def test_bench_offline_refuses_a_load_beyond_the_context() -> None:
    done = _run("bench", "offline", "--prompt-tokens", "60", "--output-tokens", "10", "--max-model-len", "64")
    assert done.returncode == 2
    assert "context of 64" in done.stderr

"""What a variant's precision costs, and whether its tokens equal the reference. Runs processes that hold a runner.

The programs are in loadtest/quality/; they import the compiler, this process does not.
"""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from ...cli.refusals import Refusal
from .variant import CheckedAnswer


class TokenCheck(Struct, frozen=True, kw_only=True):
    """Greedy tokens of the served engine compared with the reference."""

    name: str
    tokens: int
    equal_runner: int  # tokens equal to the largest logit of one runner pass over prompt and answer
    equal_definition: int  # tokens equal to the largest logit of the numpy definition, on the same rounded weights
    worst_gap: float  # of a token's logit below the definition's largest, in standard deviations of the row


class Quality(Struct, frozen=True, kw_only=True):
    """A variant compared with float32 on the same texts."""

    name: str
    tokens: int
    perplexity: float  # from the worker's log probabilities for prompts
    reference_perplexity: float
    kl_mean: float  # nats per token: KL(float32 ‖ variant) of next-token distributions
    kl_p99: float
    kl_max: float
    same_choice: float  # share of positions where both have the same most probable token
    text: str
    note: str = ""


def check_tokens(model: Path, name: str, settings: dict[str, Any], answers: Sequence[CheckedAnswer]) -> TokenCheck:
    asked = {"model": str(model), "settings": settings, "answers": answers}
    found = _run("tokens", [], msgspec.json.encode(asked))
    return msgspec.json.decode(msgspec.json.encode({"name": name, **msgspec.json.decode(found)}), type=TokenCheck)


def measure_quality(model: Path, settings: dict[str, dict[str, Any]], text: Path | None) -> list[Quality]:
    words = ["--variants", msgspec.json.encode(settings).decode(), "--json", *(["--text", str(text)] if text else [])]
    return msgspec.json.decode(_run("quality", [str(model), *words], b""), type=list[Quality])


def _run(program: str, words: Sequence[str], told: bytes) -> bytes:
    command = [sys.executable, "-m", f"triolet.loadtest.quality.{program}", *words]
    done = subprocess.run(command, input=told, capture_output=True, check=False)
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip()[-800:]
        raise Refusal(f"{program} failed, so nothing can be said about accuracy (--no-check leaves it out):\n{last}")
    return done.stdout

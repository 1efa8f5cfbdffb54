"""Raw logits of a loaded CPU model for whole texts: one sequence at a time, its prompt cut as the runner's limits ask.

A row's logits do not depend on how a prompt is cut, so these are what the served engine draws from.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from triolet.models.checkpoint.open import open_checkpoint
from triolet.models.cpu.cpu import CpuRunner
from triolet.models.cpu.load import load_runner, plan_on_cpu
from triolet.models.cpu.rows import Batch
from triolet.models.host import available_memory
from triolet.protocol.settings import EngineSettings


def load_on_cpu(model: Path, settings: dict[str, Any], longest: int | None = None) -> CpuRunner:
    """With the settings of an engine (`quantize`, `dtype`, …), for one sequence at a time."""
    given: dict[str, Any] = {"model": str(model), "device": "cpu", **settings, "max_running": 1}
    if longest is not None:
        given["max_model_len"] = longest
    if given["device"] != "cpu":
        sys.exit("only the CPU's runner gives raw logits; leave --device at cpu")
    checkpoint = open_checkpoint(model)
    sizes, _ = plan_on_cpu(checkpoint, EngineSettings(**given), available_memory())
    return load_runner(checkpoint, sizes)


def logits_of(runner: CpuRunner, tokens: Sequence[int]) -> Iterator[tuple[int, npt.NDArray[np.float32]]]:
    """(first row, logits) of one part after another; row i predicts token i + 1. A view until the next part."""
    sizes = runner.sizes
    if len(tokens) > sizes.max_model_len:
        raise ValueError(f"{len(tokens)} tokens; this runner was loaded for at most {sizes.max_model_len}")
    ids, table = np.array(tokens, np.int32), np.arange(sizes.table_width, dtype=np.int32)[None]
    part = min(sizes.max_step_tokens, sizes.max_logit_rows)
    for first in range(0, len(ids), part):
        rows = np.arange(len(ids[first : first + part]), dtype=np.int32)
        batch = Batch(
            tokens=ids[first : first + part], positions=first + rows, block_tables=table, logit_rows=rows,
            starts=np.array([0, len(rows)], np.int32),
        )  # fmt: skip
        yield first, runner.forward(batch)

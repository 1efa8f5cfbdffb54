"""What is written about a request that killed workers: enough to find the cause, and no word of its text.

One JSON file each, in `crashes/` of the data folder. It has the shape of the request and of the steps that it was in,
the model and the versions. The prompt, its grammar and the words that it forbids are in it only if the server logs at
the level debug.
"""

import logging
import platform
import time
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ..protocol.sampling import Sampling
from ..protocol.steps import Chunk, Ready
from .scheduler.blame import Conviction

FOLDER: Final = "crashes"
MOST_REASON: Final = 300  # characters: an exception may quote what it met
_WORDS: Final[dict[str, Any]] = {"bad_words": (), "allowed_tokens": b"", "logit_bias": ()}  # Any: of three types
MOST_REPORTS: Final = 100  # in the folder; later ones are only logged
_LOG: Final = logging.getLogger("triolet.crashes")


class StepShape(Struct, frozen=True, kw_only=True):
    """A step that was in flight: the chunks of all its sequences, and those that were new to the worker."""

    step: int
    chunks: tuple[Chunk, ...]
    new: dict[int, int]  # by sequence: how many tokens its record has
    copies: int
    dropped: int


class CrashReport(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One file."""

    written: float  # Unix time
    request: str
    request_id: str  # X-Request-Id
    losses: int
    reason: str
    prompt_tokens: tuple[int, ...]  # of each prompt
    generated_tokens: tuple[int, ...]  # of each unfinished choice
    n: int
    pooled: bool
    strict: bool
    grammar_characters: int
    adapter: bool
    beams: bool
    sampling: Sampling
    steps: tuple[StepShape, ...]
    model: dict[str, Any]  # Any: fields of Ready
    versions: dict[str, str]
    machine: str
    tokens: tuple[tuple[int, ...], ...] = ()  # the prompts, if asked for
    grammar: str = ""  # likewise


def crash_report(conviction: Conviction, ready: Ready | None, *, with_tokens: bool) -> CrashReport:
    live, generate = conviction.live, conviction.live.generate
    about = ("model", "architecture", "parameters", "device", "dtype", "quantize", "kv_cache_dtype", "max_running")
    return CrashReport(
        written=time.time(),
        request=live.id,
        request_id=generate.name,
        losses=conviction.losses,
        reason=conviction.reason[:MOST_REASON],
        prompt_tokens=tuple(map(len, live.prompts)),
        generated_tokens=conviction.generated,
        n=generate.n,
        pooled=generate.pooled,
        strict=generate.determinism == "strict",
        grammar_characters=len(generate.grammar),
        adapter=generate.adapter is not None,
        beams=generate.beams is not None,
        sampling=generate.sampling if with_tokens else replace(generate.sampling, **_WORDS),
        steps=tuple(
            StepShape(
                step=step.step,
                chunks=step.chunks,
                new={record.sequence: len(record.tokens) for record in step.new},
                copies=len(step.copies),
                dropped=len(step.dropped),
            )
            for step in conviction.steps
        ),
        model={name: getattr(ready, name) for name in about} if ready else {},
        versions=dict(ready.versions) if ready else {},
        machine=f"{platform.platform()} {platform.machine()}",
        tokens=live.prompts if with_tokens else (),
        grammar=generate.grammar if with_tokens else "",
    )


def write_crash_report(data: Path, report: CrashReport) -> None:
    """Waits for the disk. What cannot be written is logged, and nothing else happens."""
    folder = data / FOLDER
    file = folder / f"{time.strftime('%Y-%m-%dT%H%M%S', time.gmtime(report.written))}-{report.request}.json"
    what = f"request {report.request} killed {report.losses} workers ({report.reason})"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if sum(1 for _ in folder.iterdir()) >= MOST_REPORTS:
            _LOG.error("%s; %s has %d reports already: no other is written", what, folder, MOST_REPORTS)
            return
        file.touch(mode=0o600)
        file.write_bytes(msgspec.json.format(msgspec.json.encode(report)))
    except OSError as error:
        _LOG.error("%s; no report could be written: %s", what, error)
    else:
        _LOG.error("%s; the report is %s", what, file)

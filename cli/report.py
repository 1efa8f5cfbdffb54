"""Progress on standard error while a model loads and when it serves: bars on a terminal, lines elsewhere.

It uses plain text and two escape sequences. A library would take a tenth of a server's start and 12 MB on disk.
"""

import io
import logging
import os
import sys
from collections.abc import Mapping
from time import monotonic
from types import TracebackType
from typing import Final, Self, TextIO

from ..actors.database import data_folder
from ..actors.usage.usage import days_kept
from ..models.host import usable_cores
from ..models.plan.speed import speeds
from ..protocol.settings import EngineSettings, ServeSettings
from ..protocol.steps import LoadProgress, PoolingModel, Ready
from .calibrated import rates_here, weights_of
from .values import format_size

_LOG: Final = logging.getLogger("triolet.server")
_BAR: Final = 32
_FIRST_RATE: Final = 0.2  # seconds: a rate over less says nothing
_NAMES: Final = 8  # of adapters, in one line
_DIM, _PLAIN, _REDRAW = "\x1b[2m", "\x1b[0m", "\r\x1b[K"


class Terminal:
    """A stream for people; colour only on a terminal, and not if NO_COLOR is set."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.is_terminal = stream.isatty() and os.environ.get("TERM") != "dumb"
        self._dim, self._plain = (_DIM, _PLAIN) if self.is_terminal and not os.environ.get("NO_COLOR") else ("", "")

    def line(self, text: str) -> None:
        self._stream.write(f"{text}\n")
        self._stream.flush()

    def redraw(self, text: str) -> None:
        """Overwrite the cursor's line."""
        self._stream.write(f"{_REDRAW}{text}")
        self._stream.flush()

    def rows(self, rows: Mapping[str, str]) -> None:
        for label, text in rows.items():
            self.line(f"  {self._dim}{label:<9}{self._plain} {text}")


class LogReport(Terminal):
    """The same lines as records of the log, where a program reads standard error."""

    def __init__(self) -> None:
        super().__init__(io.StringIO())  # no terminal: nothing is drawn

    def line(self, text: str) -> None:
        _LOG.info("%s", " ".join(text.split()))


def standard_error() -> Terminal:
    return Terminal(sys.stderr)


class LoadDisplay:
    """Shows each stage of loading. Inside its `with`, call it with every LoadProgress."""

    def __init__(self, report: Terminal) -> None:
        self._report = report
        self._stage: str | None = None
        self._began = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Leave the bar as it is; later output goes below it."""
        if self._stage is not None and self._report.is_terminal:
            self._report.line("")
        self._stage = None

    def __call__(self, progress: LoadProgress) -> None:
        if progress.stage != self._stage:
            self.close()
            self._stage, self._began = progress.stage, monotonic()
            if not self._report.is_terminal:
                self._report.line(f"  {progress.stage}…")
        if self._report.is_terminal:
            full = _BAR * progress.done // max(1, progress.total)
            bar = "━" * full + " " * (_BAR - full)
            self._report.redraw(f"  {progress.stage:<24} {bar} {_so_far(progress, monotonic() - self._began)}")


def _so_far(progress: LoadProgress, seconds: float) -> str:
    """`1.2/2.5 GB  1.9 GB/s  1 s left`, or without a size `3/12  4 s`"""
    done, total = progress.done, progress.total
    if progress.unit != "bytes":
        return f"{done}/{total}  {seconds:.0f} s"
    sizes = f"{done / 1e9:.2f}/{total / 1e9:.2f} GB"
    if not done or seconds < _FIRST_RATE:
        return sizes
    left = (total - done) * seconds / done
    return f"{sizes}  {done / seconds / 1e9:.2f} GB/s  {left:.0f} s left"


def _threads(engine: EngineSettings) -> str:
    count = engine.threads or usable_cores()
    return f"{count} thread{'s' if count > 1 else ''}"


def _shortened(ready: Ready, engine: EngineSettings) -> str:
    """Says it where the memory, or an encoder's step, decided the context's length."""
    if engine.max_model_len is not None or ready.context_length >= ready.model_context_length:
        return ""
    if ready.pooling is not None:
        return f" of the model's {ready.model_context_length:,}, as many as a step reads (--max-step-tokens)"
    return f" of the model's {ready.model_context_length:,}, as many as the KV cache holds (--kv-cache-memory)"


def report_model(report: Terminal, ready: Ready, engine: EngineSettings, name: str) -> None:
    """The model, its precision and its use of memory."""
    memory = ready.memory
    precision = ready.dtype if ready.quantize == "none" else f"{ready.quantize} weights, {ready.dtype} otherwise"
    where = f"{ready.device}, {_threads(engine)}" if ready.device == "cpu" else ready.device
    used = f"weights {format_size(memory.weights_bytes)} · workspace {format_size(memory.workspace_bytes)} · "
    kept = {"memory": used + f"KV cache {format_size(memory.kv_bytes)} · peak so far {format_size(ready.peak_bytes)}"}
    if ready.pooling is None:
        kept["KV cache"] = (
            f"{memory.num_blocks:,} blocks of {memory.block_size} tokens in {ready.kv_cache_dtype}: "
            f"{memory.sequences_at_full_length:.1f} sequences at full length, {ready.max_running} at once"
            f" and {ready.max_step_tokens:,} tokens in a step"
        )
    else:
        kept = {"makes": _vectors(ready.pooling), "memory": used + f"peak so far {format_size(ready.peak_bytes)}"}
    report.rows(
        {
            "model": f"{name}: {ready.architecture}, {ready.parameters / 1e6:,.1f} M parameters{_active(ready)}, "
            f"context {ready.context_length:,} tokens{_shortened(ready, engine)}",
            "runs on": f"{where}, {precision}",
            **kept,
        }
    )
    if text := _speed(ready, engine):
        report.rows({"speed": text})


def _speed(ready: Ready, engine: EngineSettings) -> str:
    """What `triolet plan` says of this machine; empty if `triolet bench offline` never measured it in this format."""
    if ready.work is None:
        return ""
    rates = rates_here(ready.device, weights_of(ready), engine.threads or usable_cores())
    if rates.bandwidth is None or rates.operations is None:
        return ""
    most = max(1, min(ready.max_running, int(ready.memory.sequences_at_full_length)))
    fast = speeds(ready.work, rates, context=ready.context_length, most=most)
    return (
        f"{fast.prefill:,.0f} tokens/s of prompts, {fast.decode:,.1f} of one answer, {fast.decode_many:,.1f} of "
        f"{fast.many}, all at full length (predicted)"
    )


def _active(ready: Ready) -> str:
    """Of a mixture of experts, what one token uses."""
    some = 0 < ready.active_parameters < ready.parameters
    return f", {ready.active_parameters / 1e6:,.1f} M of them per token" if some else ""


def _vectors(model: PoolingModel) -> str:
    """What an encoder is there for."""
    if model.task == "classify":
        return f"scores of {len(model.labels)} label{'s' if len(model.labels) > 1 else ''}, by {model.pooling} pooling"
    length = ", of length 1" if model.normalised else ""
    return f"embeddings of {model.size} values{length}, by {model.pooling} pooling"


def reached_at(urls: list[str], settings: ServeSettings) -> list[str]:
    """The URLs with the path of a proxy, which works without one too."""
    return urls if settings.uds else [url + settings.root_path for url in urls]


def _adapters(settings: ServeSettings) -> str:
    """What LoRA adapters are offered; empty if none are."""
    names = [text.partition("=")[0] for text in settings.loras]
    offered = ", ".join(names[:_NAMES]) + (f" and {len(names) - _NAMES} more" if len(names) > _NAMES else "")
    loaded = f"clients may load others from {settings.lora_folder}" if settings.lora_folder else ""
    parts = [part for part in (offered, loaded) if part]
    return "; ".join([*parts, f"{settings.limits.max_loras} in memory at once"]) if parts else ""


def report_addresses(report: Terminal, urls: list[str], settings: ServeSettings) -> None:
    """The addresses to open."""
    keys = len(settings.key_digests)
    everybody = "open to this user" if settings.uds else "open to this machine"
    asked = f"asks for {'a key' if keys == 1 else f'one of {keys} keys'}" if keys else everybody
    if settings.uds:
        report.rows({"API": f"/v1 at {urls[0]}  ({asked})"})
    else:
        report.rows({"chat page": f"{urls[0]}/", "API": f"{urls[0]}/v1  ({asked})"})
    if adapters := _adapters(settings):
        report.rows({"adapters": adapters})
    report.rows({"data": f"files, batches and stored answers go to {data_folder(settings.data)}"})
    if days := days_kept(settings):
        report.rows({"usage": f"a record of each request is kept there for {days:,} days"})

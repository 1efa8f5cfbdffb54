"""What a start tells: of loading, and of the LoRA adapters that it offers."""

import io
from typing import Literal

import pytest

from triolet.cli.report import Terminal, _so_far, report_addresses, report_model
from triolet.protocol.settings import EngineSettings, ServeSettings
from triolet.protocol.steps import LoadProgress

from ..actors.wiring import make_ready


@pytest.mark.parametrize(
    ("loras", "folder", "line"),
    [
        (("law=a", "prose=b"), None, "law, prose; 16 in memory at once"),
        ((), "more", "clients may load others from more; 16 in memory at once"),
        (tuple(f"a{n}=x" for n in range(10)), None, "a0, a1, a2, a3, a4, a5, a6, a7 and 2 more; 16 in memory at once"),
        ((), None, None),
    ],
)
def test_adapters_have_a_line_if_there_are_any(loras: tuple[str, ...], folder: str | None, line: str | None) -> None:
    text = io.StringIO()
    settings = ServeSettings(engine=EngineSettings(model="demo"), loras=loras, lora_folder=folder)
    report_addresses(Terminal(text), ["http://localhost"], settings)
    found = [line.split(maxsplit=1)[1] for line in text.getvalue().splitlines() if line.split()[0] == "adapters"]
    assert found == ([line] if line else [])


def test_a_mixture_tells_what_a_token_uses() -> None:
    text = io.StringIO()
    ready = make_ready(parameters=30_532_000_000, active_parameters=3_345_000_000)
    report_model(Terminal(text), ready, EngineSettings(model="demo"), "m")
    assert "30,532.0 M parameters, 3,345.0 M of them per token, context" in text.getvalue()
    report_model(Terminal(text), make_ready(active_parameters=1000), EngineSettings(model="demo"), "m")
    assert text.getvalue().count("per token") == 1


@pytest.mark.parametrize(
    ("done", "unit", "seconds", "text"),
    [
        (3, "", 4.2, "3/12  4 s"),
        (500_000_000, "bytes", 0.5, "0.50/2.50 GB  1.00 GB/s  2 s left"),
        (500_000_000, "bytes", 0.1, "0.50/2.50 GB"),
        (0, "bytes", 3.0, "0.00/2.50 GB"),
    ],
)
def test_a_bar_of_bytes_tells_the_rate_and_the_time_left(
    done: int, unit: Literal["", "bytes"], seconds: float, text: str
) -> None:
    total = 2_500_000_000 if unit == "bytes" else 12
    assert _so_far(LoadProgress(stage="packing weights", done=done, total=total, unit=unit), seconds) == text

"""What a start tells of the LoRA adapters that it offers."""

import io

import pytest

from triolet.cli.report import Terminal, report_addresses
from triolet.protocol.settings import EngineSettings, ServeSettings


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

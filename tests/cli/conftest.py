import os
from pathlib import Path

import pytest

from triolet.cli.sources import PREFIX


@pytest.fixture
def no_settings_elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No variable and no file of the machine that runs the tests: an empty folder is the current one."""
    for name in [name for name in os.environ if name.startswith(PREFIX)]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")

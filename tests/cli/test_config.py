"""`triolet config`: what it prints is true, can be read again, and holds no secret; the page that lists the options."""

import re
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from triolet.cli.main import main
from triolet.cli.options import FIELDS
from triolet.cli.sources import PREFIX, option_name

from .option_table import PAGE, option_table, page_with


@pytest.fixture(autouse=True)
def _nothing_set_elsewhere(no_settings_elsewhere: None) -> None:
    """No variable and no file of the machine that runs the tests."""


def _config(*arguments: str) -> str:
    result = CliRunner().invoke(main, ["config", *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def _line(text: str, key: str) -> str:
    found = re.findall(rf"^(?:# )?{key} +[=#] .*$", text, re.MULTILINE)
    assert len(found) == 1, key
    return str(found[0])


def test_each_setting_has_a_line_that_says_where_it_comes_from(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("triolet.toml").write_text("max-requests = 3")
    monkeypatch.setenv("TRIOLET_PORT", "9000")
    text = _config("--max-running", "5")
    for field in FIELDS:
        assert _line(text, option_name(field))
    assert _line(text, "max-requests").split("#")[1].strip() == "max-requests in triolet.toml"
    assert _line(text, "port").split() == ["port", "=", "9000", "#", "variable", "TRIOLET_PORT"]
    assert _line(text, "max-running").endswith("# command line")
    assert _line(text, "host").endswith("# default")
    assert _line(text, "kv-cache-memory").endswith("# default: a share of what is free")


def test_the_output_is_a_file_with_the_same_settings(tmp_path: Path) -> None:
    model = tmp_path / 'a "quoted" \\ folder \x7f\N{SNOWMAN}'
    file = tmp_path / "keys"
    file.write_text("one")
    given = ("--port", "9000", "--inline", "--kv-cache-memory", "1GiB", "--gpu-memory", "0.5", "--api-key", f"@{file}")
    first = _config(str(model), *given)
    saved = tmp_path / "saved.toml"
    saved.write_text(first)
    again = _config("--config", str(saved))
    assert tomllib.loads(again) == tomllib.loads(first)
    assert tomllib.loads(again)["model"] == str(model)
    assert tomllib.loads(again)["kv-cache-memory"] == 1 << 30


def test_keys_are_not_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    text = _config("--api-key", "s3cret", "--api-key", "t0p")
    assert _line(text, "api-key").endswith("# command line; 2 given, not shown")
    monkeypatch.setenv(f"{PREFIX}API_KEY", "fr0menv")
    text += _config()
    assert not any(secret in text for secret in ("s3cret", "t0p", "fr0menv"))


def test_the_page_lists_every_option() -> None:
    assert PAGE.read_text(encoding="utf-8") == page_with(option_table()), "run python -m tests.cli.option_table"

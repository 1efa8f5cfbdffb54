"""What a server writes to standard error: lines of text, or JSON objects with the same facts; no secret in either."""

import json
import logging
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner

from triolet.actors.logs import JsonLines
from triolet.cli.main import main

from ..conftest import running_server


def _ask(url: str, key: str = "") -> None:
    """A listed model, a page that is not there, a generation that is answered and one that is refused."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    with httpx.Client(base_url=url, headers=headers, timeout=60) as client:
        client.get("/v1/models", headers={"X-Request-Id": "listed"})
        client.get("/no%0Asuch?q=s3cret-query")
        asked = {"prompt": "s3cret-prompt", "max_tokens": 3, "ignore_eos": True}
        assert client.post("/v1/completions", json=asked, headers={"X-Request-Id": "asked"}).status_code == 200
        client.post("/v1/completions", json={**asked, "s3cret-field": 1})


def test_json_lines_hold_every_exchange_and_no_secret(tmp_path: Path) -> None:
    log = tmp_path / "log"
    options = ("--log-format", "json", "--access-log", "--api-key", "s3cret-key", "--web-processes", "2")
    with running_server(log, *options) as server:
        _ask(server.url, key="s3cret-key")
    assert "s3cret" not in log.read_text()
    lines = [json.loads(line) for line in log.read_text().splitlines()]  # every line, of every process
    assert all({"time", "level", "logger", "pid", "message"} <= line.keys() for line in lines)
    seen = [line for line in lines if line["logger"] == "triolet.access"]
    assert [(line["method"], line["path"], line["status"]) for line in seen] == [
        ("GET", "/v1/models", 200),
        ("GET", "/no%0Asuch", 404),
        ("POST", "/v1/completions", 200),
        ("POST", "/v1/completions", 400),
    ]
    assert seen[0]["request_id"] == "listed"
    assert (seen[2]["request_id"], seen[2]["completion_tokens"]) == ("asked", 3)
    (ended,) = [line for line in lines if line["logger"] == "triolet.requests"]
    assert (ended["request_id"], ended["reason"], ended["completion"]) == ("asked", "length", 3)


def test_text_has_the_same_lines(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with running_server(log, "--access-log") as server:
        _ask(server.url)
    text = log.read_text()
    assert text.count(" INFO triolet.access: ") == 4
    assert text.count(" INFO triolet.requests: ") == 1
    assert "POST /v1/completions 200 ms=" in text


LOG = """
import logging
from triolet.actors.logs import log_to_stderr
from triolet.protocol.settings import EngineSettings
log_to_stderr(EngineSettings(model="", log_level={level!r}))
for name in ("triolet.requests", "library"):
    for level in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR):
        logging.getLogger(name).log(level, "said")
"""


@pytest.mark.parametrize(
    ("level", "ours", "theirs"), [("debug", 4, 2), ("info", 3, 2), ("warning", 2, 2), ("error", 1, 1)]
)
def test_the_level_is_ours_and_libraries_only_warn(level: str, ours: int, theirs: int) -> None:
    command = [sys.executable, "-c", LOG.format(level=level)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    assert (said.count("triolet.requests: said"), said.count("library: said")) == (ours, theirs)


def test_an_exception_is_one_line_of_json() -> None:
    try:
        raise ValueError("wrong")
    except ValueError:
        error = sys.exc_info()
    record = logging.LogRecord("triolet.http", logging.ERROR, __file__, 1, "unexpected %s", ("error",), error)
    record.fields = {"code": "internal_error"}
    line = JsonLines().format(record)
    assert "\n" not in line
    told = json.loads(line)
    assert (told["level"], told["message"], told["code"]) == ("error", "unexpected error", "internal_error")
    assert told["exception"].startswith("Traceback")
    assert told["exception"].endswith("ValueError: wrong")


def test_what_is_no_character_is_logged_too() -> None:
    record = logging.LogRecord("triolet.x", logging.INFO, "", 0, "path %s", ("a\udc80",), None)
    record.fields = {"path": Path("b\udc80")}
    line = json.loads(JsonLines().format(record))
    assert (line["message"], line["path"]) == ("path a\udc80", "b\udc80")


@pytest.mark.parametrize("command", ["chat", "complete", "bench offline"])
def test_commands_that_print_for_a_person_have_no_log_options(command: str) -> None:
    assert "--log-level" not in CliRunner().invoke(main, [*command.split(), "--help"]).output

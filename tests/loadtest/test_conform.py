"""`triolet conform`: our server keeps every promise, and each broken promise is found behind a relay that breaks it."""

import json
import re
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import StringIO
from pathlib import Path

import msgspec
import pytest
import trio
from click.testing import CliRunner
from rich.console import Console

from triolet.cli.main import main
from triolet.loadtest.conform.check import CheckGroup, CheckResult, title
from triolet.loadtest.conform.conform import GROUPS, conform, first_model
from triolet.loadtest.conform.server import ExaminedServer
from triolet.loadtest.conform.table import Report, table_of

from ..conftest import Server

Alter = Callable[[int, bytes], tuple[int, bytes]]


def results(url: str, groups: Iterable[CheckGroup] = GROUPS, model: str | None = None) -> list[CheckResult]:
    async def examine() -> list[CheckResult]:
        server = ExaminedServer(url, model=model or await first_model(url, None))
        found = [result async for result in conform(server, groups, seconds=30)]
        await server.close()
        return found

    return trio.run(examine)


def test_our_server_fails_no_check(server: Server) -> None:
    found = results(server.url)
    assert [result for result in found if result.verdict == "fails"] == []
    assert sum(result.verdict == "ok" for result in found) >= 65


def test_every_check_has_a_line_of_its_own() -> None:
    lines = [(group.name, title(check)) for group in GROUPS for check in group.checks]
    assert len(set(lines)) == len(lines)


@contextmanager
def relay(to: str, alter: Alter) -> Generator[str]:
    """The server at `to`, but every answer goes through `alter`."""

    class Relay(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._pass_on(None)

        def do_POST(self) -> None:
            self._pass_on(self.rfile.read(int(self.headers["Content-Length"])))

        def _pass_on(self, body: bytes | None) -> None:
            asked = urllib.request.Request(to + self.path, body, {"Content-Type": "application/json"})
            try:
                answer = urllib.request.urlopen(asked, timeout=30)
            except urllib.error.HTTPError as error:
                answer = error
            with answer:
                status, data = alter(answer.status or 0, answer.read())
                self.send_response(status)
                self.send_header("Content-Type", answer.headers["Content-Type"])
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Relay) as listening:
        listening.daemon_threads = True
        threading.Thread(target=partial(listening.serve_forever, 0.01), daemon=True).start()
        yield f"http://127.0.0.1:{listening.server_address[1]}"
        listening.shutdown()


def put(old: str, new: str) -> Alter:
    return lambda status, body: (status, re.sub(old.encode(), new.encode(), body))


def all_are_fine(_status: int, body: bytes) -> tuple[int, bytes]:
    return 200, body


def an_end_of_its_own(_status: int, _body: bytes) -> tuple[int, bytes]:
    return 200, b'{"choices":[{"index":0,"text":" total = a + b\\n    return total"}]}'


def a_usage_that_lies(status: int, body: bytes) -> tuple[int, bytes]:
    return status, re.sub(rb'"total_tokens":\d+', b'"total_tokens":1', body)


@pytest.mark.parametrize(
    ("group", "alter", "check"),
    [
        ("chat", put('"data":.*', '"data":[]}'), "/v1/models lists the models"),
        ("chat", put('"chat.completion"', '"completion"'),
         "An answer has id, object, created, model, choices and usage"),
        ("chat", a_usage_that_lies, "usage adds up, and is at least one token each"),
        ("chat", put('"length"', '"stop"'), "max_tokens cuts the answer and says length"),
        ("streams", put(r"data: \[DONE\]\n\n", ""), "Events are JSON, the last is [DONE]"),
        ("streams", put('"role":"assistant",?', ""), "The first delta names the role"),
        ("streams", put('"choices":[[][]],', '"choices":[{"index":0,"delta":{},"finish_reason":null}],'),
         "include_usage: usage comes last, without choices, equal to the whole answer's"),
        ("streams", put('"finish_reason":null', '"finish_reason":"length"'),
         "Each choice has one finish_reason, in its last chunk"),
        ("completions", put('"text":"', '"text":"x'), "echo: the text begins with the prompt"),
        ("completions", an_end_of_its_own, "suffix: the text between two ends, without them"),
        ("errors", all_are_fine, "A body that is not JSON: 400"),
        ("errors", put('"param":', '"parameter":'), "A field of the wrong type: 400, and the message names it"),
        ("errors", put('"model_not_found"', '"not_found"'), "An unknown model: 404 with model_not_found"),
    ],
)  # fmt: skip
def test_a_broken_promise_is_found(server: Server, group: str, alter: Alter, check: str) -> None:
    (broken,) = (each for name, checks in GROUPS if name == group for each in checks if title(each) == check)
    with relay(server.url, alter) as url:
        (result,) = results(url, [CheckGroup(group, (broken,))], model="triolet-demo")
    assert result.verdict == "fails"


def test_a_faithful_relay_fails_nothing(server: Server) -> None:
    """So it is what the relay alters that fails."""
    with relay(server.url, lambda status, body: (status, body)) as url:
        assert [result for result in results(url, GROUPS[:1]) if result.verdict == "fails"] == []


def test_the_command_prints_a_table_and_tells_by_its_exit_code(server: Server) -> None:
    run = partial(CliRunner().invoke, main)
    good = run(["conform", server.url, "--group", "errors", "--json"])
    assert good.exit_code == 0
    assert {result["group"] for result in json.loads(good.stdout)["results"]} == {"errors"}
    with relay(server.url, all_are_fine) as url:
        bad = run(["conform", url, "--group", "errors", "--name", "relay"])
    assert bad.exit_code == 1
    assert "relay" in bad.stdout
    assert "fails: status 200, not 400" in " ".join(bad.stdout.split())


def test_a_group_that_is_none_and_a_server_that_is_not_there_are_said(server: Server) -> None:
    run = partial(CliRunner().invoke, main)
    wrong = run(["conform", server.url, "--group", "poems"])
    assert (wrong.exit_code, "'poems' is none of chat, streams" in wrong.output) == (2, True)
    nobody = run(["conform", "http://127.0.0.1:9"])
    assert (nobody.exit_code, "http://127.0.0.1:9: 127.0.0.1:9: " in nobody.output) == (1, True)


def test_what_is_no_report_is_refused_before_the_run(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("notes")
    refused = CliRunner().invoke(main, ["conform", "http://127.0.0.1:9", "--compare", str(tmp_path / "notes.txt")])
    assert (refused.exit_code, "notes.txt is no report of --json" in " ".join(refused.output.split())) == (2, True)


def test_reports_stand_side_by_side() -> None:
    ours = CheckResult(group="chat", check="It answers", verdict="ok")
    theirs = msgspec.structs.replace(ours, verdict="fails", detail="it does not")
    only_ours = CheckResult(group="tools", check="It calls", verdict="not offered", detail="404")
    reports = [
        Report(name="ours", url="", model="", results=(ours, only_ours)),
        Report(name="theirs", url="", model="", results=(theirs,)),
    ]
    shown = StringIO()
    Console(width=120, file=shown).print(table_of(reports))
    assert "fails: it does not" in shown.getvalue()
    assert "1 ok, 0 fail, 1 not offered" in shown.getvalue()

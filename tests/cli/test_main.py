import subprocess
import sys

from click.testing import CliRunner

from triolet.cli.main import COMMANDS, main

SHOW_MODULES = """
import sys
from triolet.cli.main import main
main(["--help"], standalone_mode=False)
print(*sorted({name.partition(".")[0] for name in sys.modules}))
"""


def test_help_imports_nothing_that_takes_time() -> None:
    """What makes `triolet --help` answer at once; a timing would only say how busy the machine is."""
    done = subprocess.run([sys.executable, "-c", SHOW_MODULES], capture_output=True, text=True, check=True)
    modules = set(done.stdout.splitlines()[-1].split())
    assert "click" in modules
    heavy = {"trio", "quart", "quart_trio", "hypercorn", "msgspec", "rich", "numpy", "numba", "torch", "tokenizers"}
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


def test_an_unknown_command_is_refused() -> None:
    result = CliRunner().invoke(main, ["serv"])
    assert result.exit_code == 2
    assert "serv" in result.output


def test_the_version_is_the_distribution_s() -> None:
    result = CliRunner().invoke(main, ["--version"], prog_name="triolet")
    assert result.output == "triolet 0.1.0\n"

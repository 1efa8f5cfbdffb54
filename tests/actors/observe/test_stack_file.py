"""SIGUSR2: the stacks and the tasks of this process, in a file, as often as somebody asks. It ends nothing."""

import os
import signal
from pathlib import Path

import trio

from triolet.actors.observe.stack_file import END, SUFFIX, stacks_on_signal

from ..engine_house import until


async def ask_where_this_is(file: Path) -> str:
    os.truncate(file, 0)
    os.kill(os.getpid(), signal.SIGUSR2)
    await until(lambda: END in file.read_text(), "a thread has written the tasks")
    return file.read_text()  # noqa: ASYNC240


async def test_stacks_and_tasks_are_written_again_and_again(tmp_path: Path) -> None:
    with stacks_on_signal(tmp_path):
        (file,) = tmp_path.glob(f"*-{os.getpid()}{SUFFIX}")  # noqa: ASYNC240
        assert file.stat().st_mode & 0o077 == 0
        for _ in range(2):
            stacks, _, tasks = (await ask_where_this_is(file)).partition("Tasks:")
            assert "in ask_where_this_is" in stacks or "in get_events" in stacks
            assert "engine_house.py" in tasks
    assert not file.exists()
    os.kill(os.getpid(), signal.SIGUSR2)


async def test_without_a_folder_the_signal_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "flight").touch()
    with stacks_on_signal(tmp_path / "flight"):
        os.kill(os.getpid(), signal.SIGUSR2)
        await trio.lowlevel.checkpoint()

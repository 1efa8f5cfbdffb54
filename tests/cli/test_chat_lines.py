import os
from pathlib import Path

import pytest
import trio
import trio.testing

from triolet.cli.chat_lines import PlainLines


async def test_lines_come_one_by_one_however_they_are_written() -> None:
    source, sink = os.pipe()
    lines = PlainLines(source)
    os.write(sink, b"one\ntwo\r\nhal")
    assert [await lines.read(), await lines.read()] == ["one", "two"]
    os.write(sink, "f é\nrest".encode())
    os.close(sink)
    assert [await lines.read(), await lines.read(), await lines.read()] == ["half é", "rest", None]
    os.close(source)


async def test_waiting_for_a_line_can_be_cancelled() -> None:
    source, sink = os.pipe()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(PlainLines(source).read)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    os.close(source)
    os.close(sink)


@pytest.mark.parametrize(("text", "expected"), [("a\nb\n", ["a", "b"]), ("", []), ("a", ["a"])])
async def test_a_file_is_read_too(tmp_path: Path, text: str, expected: list[str]) -> None:
    path = tmp_path / "lines.txt"
    path.write_text(text)
    with path.open() as file:
        lines = PlainLines(file.fileno())
        read: list[str] = []
        while (line := await lines.read()) is not None:
            read.append(line)
    assert read == expected


async def test_an_input_of_nothing_ends_at_once() -> None:
    """As of a service or a cron job: epoll does not accept /dev/null."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    assert await PlainLines(nothing).read() is None
    os.close(nothing)

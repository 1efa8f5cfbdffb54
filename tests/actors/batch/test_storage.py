"""What batches take of --batch-storage, besides their files."""

from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from triolet.actors.batch import batches, files, validation
from triolet.actors.batch.folder import DataFolder
from triolet.actors.batch.incoming import IncomingFile
from triolet.protocol.errors import ApiError
from triolet.protocol.openai_batches import CreateBatch

LINE = b'{"custom_id":"%s%d","method":"POST","url":"/v1/completions","body":{}}\n'


@pytest.fixture
async def folder(tmp_path: Path) -> AsyncIterator[DataFolder]:
    folder = DataFolder(tmp_path / "data")
    yield folder
    folder.close()


async def create(folder: DataFolder, content: bytes) -> str:
    incoming = IncomingFile(folder, tenant="a", filename="in", purpose="batch", keep_seconds=3600)
    async with incoming:
        await incoming.write(content)
        now = (await incoming.complete()).created_at
    body = CreateBatch(input_file_id=incoming.id, endpoint="/v1/completions", completion_window="24h")
    return (await folder.run(batches.create, body, "a", now)).id


async def test_lines_and_results_count_as_stored_until_they_are_in_a_file(folder: DataFolder) -> None:
    id = await create(folder, 2 * LINE % (b"a", 1, b"b", 2))
    batch = await folder.run(batches.get, id, "a")
    size = (await folder.run(files.get, batch.input_file_id, "a", batch.created_at)).bytes
    await folder.run(files.begin, "new", "a", "x", "batch", batch.created_at, 9)

    async def room_is(storage: int, room: int) -> None:
        reserve = partial(files.reserve, storage=storage, several_tenants=False)
        with pytest.raises(ApiError, match="--batch-storage"):
            await folder.run(reserve, "new", room + 1)
        await folder.run(reserve, "new", room)

    await room_is(6 * size + 100, 100)  # before its lines are read, five times its file's bytes are kept for them
    names = ["a", "é" * 100]
    await folder.run(
        batches.add_lines, id, [batches.PlacedLine(number, name, 0, 9) for number, name in enumerate(names)]
    )
    await folder.run(batches.move, id, ("validating",), "in_progress", 0)
    rows = 2 * files.LINE_BYTES + 2 * (1 + 200)
    await room_is(size + rows + 100, 100)
    await folder.run(partial(batches.put_result, failed=False), id, 0, b"x" * 1000)
    await room_is(size + rows + 1000 + 100, 100)
    await folder.run(partial(batches.end, output=None, error=None), id, "completed", 0)
    await room_is(size + 100, 100)


async def test_a_batch_whose_lines_do_not_fit_is_refused(folder: DataFolder) -> None:
    batch = await folder.run(batches.get, await create(folder, 2 * LINE % (b"a", 1, b"b", 2)), "a")
    size = (await folder.run(files.get, batch.input_file_id, "a", batch.created_at)).bytes
    body = CreateBatch(input_file_id=batch.input_file_id, endpoint="/v1/completions", completion_window="24h")
    make = partial(batches.create, body=body, tenant="a", now=batch.created_at)
    await folder.run(partial(make, storage=11 * size))  # the file, and ten times as much for two batches of it
    with pytest.raises(ApiError, match="--batch-storage") as refusal:
        await folder.run(partial(make, storage=15 * size))
    assert (refusal.value.status, refusal.value.param) == (413, "input_file_id")


async def test_what_is_kept_for_lines_is_enough_for_the_shortest_and_the_longest_names(folder: DataFolder) -> None:
    for name in ("", "x" * 508):
        content = b"".join(LINE % (name.encode(), number) for number in range(1000))
        id = await create(folder, content)
        status = await validation.validate(folder, await folder.run(batches.get, id, "a"), 10_000)
        assert status == "in_progress"
        read = await folder.run(files.used)
        await folder.run(lambda c: c.execute("UPDATE batches SET status = 'validating'"))
        assert read <= await folder.run(files.used)
        await folder.run(lambda c: c.execute("UPDATE batches SET status = 'cancelled'"))
        await folder.run(batches.forget_lines, id)

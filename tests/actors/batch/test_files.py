"""The table of files: room, pages, owners, expiry. And the folder's owner."""

import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from triolet.actors.batch import batches, files
from triolet.actors.batch.folder import DataFolder
from triolet.actors.batch.incoming import RESERVED_AHEAD, IncomingFile
from triolet.protocol.errors import ApiError
from triolet.protocol.openai_batches import CreateBatch, FileObject

NOW = 1_000_000
KIB = 1 << 10


@pytest.fixture
async def folder(tmp_path: Path) -> AsyncIterator[DataFolder]:
    folder = DataFolder(tmp_path / "data")
    yield folder
    folder.close()


async def store(
    folder: DataFolder, size: int, tenant: str = "a", storage: int | None = None, several: bool = False
) -> FileObject:
    incoming = IncomingFile(
        folder,
        tenant=tenant,
        filename="in.jsonl",
        purpose="batch",
        keep_seconds=3600,
        storage=storage,
        several_tenants=several,
    )
    async with incoming:
        for start in range(0, size, KIB):
            await incoming.write(b"x" * min(KIB, size - start))
        return await incoming.complete()


async def test_nothing_is_made_before_the_first_file(folder: DataFolder) -> None:
    assert not folder.exists
    assert not folder.path.exists()
    file = await store(folder, 3)
    assert folder.exists
    assert folder.file_path(file.id).read_bytes() == b"xxx"
    assert folder.path.stat().st_mode & 0o077 == 0


async def test_a_file_that_does_not_fit_leaves_nothing_and_one_that_just_fits_is_kept(folder: DataFolder) -> None:
    storage = 64 * KIB
    kept = await store(folder, 40 * KIB, storage=storage)
    with pytest.raises(ApiError, match="--batch-storage") as refusal:
        await store(folder, 25 * KIB, storage=storage)
    assert refusal.value.code == "storage_full"
    assert [path.name for path in (folder.path / "files").iterdir()] == [kept.id]
    await store(folder, 24 * KIB, storage=storage)  # what was reserved ahead was given back


async def test_with_several_keys_one_leaves_as_much_as_it_takes(folder: DataFolder) -> None:
    storage = 90 * KIB
    with pytest.raises(ApiError, match="this API key's share"):
        await store(folder, 46 * KIB, storage=storage, several=True)
    await store(folder, 45 * KIB, storage=storage, several=True)
    await store(folder, 22 * KIB, "b", storage=storage, several=True)  # half of what is left
    with pytest.raises(ApiError, match="this API key's share"):
        await store(folder, 2 * KIB, "b", storage=storage, several=True)


async def test_an_arriving_file_takes_room_but_is_not_there_yet(folder: DataFolder) -> None:
    incoming = IncomingFile(
        folder, tenant="a", filename="x", purpose="batch", keep_seconds=9, storage=3 * RESERVED_AHEAD
    )
    async with incoming:
        await incoming.write(b"x" * KIB)
        with pytest.raises(ApiError):
            await folder.run(files.get, incoming.id, "a", NOW)
        with pytest.raises(ApiError):
            await store(folder, RESERVED_AHEAD, storage=RESERVED_AHEAD + KIB)
    assert await folder.run(files.known_ids) == set()


async def test_pages_go_either_way_and_show_own_files_only(folder: DataFolder) -> None:
    mine = [(await store(folder, 1)).id for _ in range(5)]
    other = await store(folder, 1, "b")
    now = other.created_at
    first = await folder.run(lambda c: files.page(c, "a", now, limit=2))
    assert ([file.id for file in first.data], first.has_more) == (mine[:-3:-1], True)
    second = await folder.run(lambda c: files.page(c, "a", now, limit=9, after=first.last_id))
    assert ([file.id for file in second.data], second.has_more) == (mine[2::-1], False)
    oldest = await folder.run(lambda c: files.page(c, "a", now, limit=2, ascending=True))
    assert [file.id for file in oldest.data] == mine[:2]
    with pytest.raises(ApiError, match="there is no file"):
        await folder.run(lambda c: files.page(c, "a", now, limit=2, after=other.id))


async def test_expired_files_go_but_not_those_that_a_batch_reads(folder: DataFolder) -> None:
    old, read = await store(folder, 1), await store(folder, 1)
    now = old.expires_at
    body = CreateBatch(input_file_id=read.id, endpoint="/v1/completions", completion_window="24h")
    batch = await folder.run(batches.create, body, "a", old.created_at)
    with pytest.raises(ApiError, match="reads this file"):
        await folder.run(files.delete, read.id, "a", old.created_at)
    assert await folder.run(files.take_expired, now, 0) == [old.id]
    await folder.run(batches.move, batch.id, ("validating",), "cancelled", now)
    assert await folder.run(files.take_expired, now, 0) == [read.id]


async def test_an_abandoned_upload_is_forgotten(folder: DataFolder) -> None:
    await folder.run(files.begin, "file-1", "a", "x", "batch", NOW, 3600)
    assert await folder.run(files.take_expired, NOW, NOW) == []
    assert await folder.run(files.take_expired, NOW, NOW + 1) == ["file-1"]


async def test_a_failed_transaction_changes_nothing(folder: DataFolder) -> None:
    file = await store(folder, 1)

    def drop_and_fail(connection: object) -> None:
        files.drop(connection, file.id)  # type: ignore[arg-type]  # as DataFolder.run passes it
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        await folder.run(drop_and_fail)
    assert (await folder.run(files.get, file.id, "a", file.created_at)).id == file.id


async def test_a_folder_belongs_to_one_server(folder: DataFolder) -> None:
    await store(folder, 1)
    folder.refuse_if_foreign()
    hold = (
        "import sys; from pathlib import Path; from triolet.actors.batch.folder import DataFolder\n"
        "assert DataFolder(Path(sys.argv[1])).try_lock(); print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(  # noqa: ASYNC220  # nothing else runs here
        [sys.executable, "-c", hold, str(folder.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdin is not None
        assert owner.stdout is not None
        owner.stdout.readline()
        assert not folder.try_lock()
        with pytest.raises(ApiError, match=f"process {owner.pid}") as refusal:
            folder.refuse_if_foreign()
        assert refusal.value.status == 409
        owner.stdin.close()
    assert folder.try_lock()
    assert f"process {os.getpid()} on {socket.gethostname()}" in (folder.path / "lock").read_text()


async def test_a_server_that_hands_over_and_the_next_one_share_the_folder(folder: DataFolder) -> None:
    await store(folder, 1)
    hold = (
        "import sys; from pathlib import Path; from triolet.actors.batch.folder import DataFolder\n"
        "assert DataFolder(Path(sys.argv[1]), follows=True).try_lock(); print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(  # noqa: ASYNC220  # nothing else runs here
        [sys.executable, "-c", hold, str(folder.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdout.readline()
        assert not folder.try_lock()
        folder.refuse_if_foreign()
        child.stdin.close()


async def test_a_process_of_another_machine_with_the_same_number_is_another_server(folder: DataFolder) -> None:
    await store(folder, 1)
    holder = DataFolder(folder.path)
    assert holder.try_lock()
    try:
        folder.refuse_if_foreign()  # held by this process
        lock = folder.path / "lock"
        mine = lock.read_text()
        for other in (mine.replace(f" on {socket.gethostname()}", " on elsewhere"), f"{mine}1", str(os.getpid())):
            lock.write_text(other)
            with pytest.raises(ApiError, match=f"Another server \\({other}\\)") as refusal:
                folder.refuse_if_foreign()
            assert refusal.value.status == 409
    finally:
        holder.close()


async def test_a_lock_that_cannot_be_asked_for_is_refused_with_the_remedy(folder: DataFolder) -> None:
    await store(folder, 1)
    (folder.path / "lock").mkdir()
    with pytest.raises(ApiError, match=r"cannot be known.*--data") as refusal:
        folder.refuse_if_foreign()
    assert refusal.value.status == 409

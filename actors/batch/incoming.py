"""A file on its way to disk, under a name of its own. It counts as a file once all of it is there."""

import os
import time
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Final, Self

import trio

from ...protocol.errors import ApiError
from ...protocol.openai_batches import FileObject, FilePurpose
from . import files
from .folder import DataFolder

RESERVED_AHEAD: Final = 4 << 20  # bytes; adding up what all files hold takes milliseconds


class IncomingFile:
    """`write` its bytes in order, then `complete`. If the block ends without that, nothing of it stays.

    `storage` is the room for all files in bytes; None: without a bound.
    """

    def __init__(
        self,
        folder: DataFolder,
        *,
        tenant: str,
        filename: str,
        purpose: FilePurpose,
        keep_seconds: int,
        storage: int | None = None,
        several_tenants: bool = False,
    ) -> None:
        self.id = files.new_file_id()
        self.size = 0
        self._folder = folder
        self._begin = partial(
            files.begin,
            id=self.id,
            tenant=tenant,
            filename=filename,
            purpose=purpose,
            now=int(time.time()),
            keep=keep_seconds,
        )
        self._reserve = partial(files.reserve, id=self.id, several_tenants=several_tenants)
        self._storage = storage
        self._reserved = 0
        self._path: Path = folder.file_path(self.id)
        self._output: BinaryIO | None = None
        self.completed = False  # it is in the table

    async def __aenter__(self) -> Self:
        await self._folder.run(self._begin)
        self._output = await trio.to_thread.run_sync(lambda: self._path.open("xb"))
        return self

    async def write(self, data: bytes) -> None:
        """Raises ApiError (413) if there is no room for it."""
        assert self._output is not None
        self.size += len(data)
        if self._storage is not None and self.size > self._reserved:
            self._reserved = await self._more_room(self._storage)
        await trio.to_thread.run_sync(self._output.write, data)

    async def _more_room(self, storage: int) -> int:
        ahead = self.size + RESERVED_AHEAD
        try:
            await self._folder.run(self._reserve, size=ahead, storage=storage)
        except ApiError:
            await self._folder.run(self._reserve, size=self.size, storage=storage)
            return self.size
        return ahead

    async def sync(self) -> None:
        """Its bytes are on the disk, and stay there if the machine's power fails."""
        output = self._output
        assert output is not None

        def flush() -> None:
            output.flush()
            os.fsync(output.fileno())

        await trio.to_thread.run_sync(flush)

    async def complete(self, keep_seconds: int | None = None) -> FileObject:
        await self.sync()
        file = await self._folder.run(files.complete, self.id, self.size, keep_seconds)
        self.completed = True
        return file

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with trio.CancelScope(shield=True):  # milliseconds
            if self._output is not None:
                await trio.to_thread.run_sync(self._output.close)
            if not self.completed:
                await self._folder.run(files.drop, self.id)
                await trio.to_thread.run_sync(partial(self._path.unlink, missing_ok=True))

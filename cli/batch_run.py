"""One run of `triolet batch`: a server's batch runner on a data folder of its own, `OUTPUT.part`, until the end."""

import os
import shutil
import time
from functools import partial
from pathlib import Path
from typing import Final

import trio
from msgspec import structs

from ..actors.batch import batches
from ..actors.batch.folder import DataFolder
from ..actors.batch.incoming import IncomingFile
from ..actors.core import Core
from ..protocol.errors import ApiError
from ..protocol.openai_batches import FILE_SECONDS, BatchObject, CreateBatch, RequestCounts
from ..protocol.settings import ServeSettings
from .batch_file import digest_of, endpoint_of, refuse_invalid, refuse_other
from .batch_progress import batch_progress
from .batch_remote import SENT
from .batches import run_batches
from .refusals import Refusal
from .report import LoadDisplay, standard_error

YEARS: Final = 10 * 365 * 24 * 3600  # seconds: a batch of one's own does not expire
LOOK_SECONDS: Final = 0.25
TENANT: Final = ""  # as in a server without keys
_COPIED_AT_ONCE: Final = 1 << 20


class BatchRun:
    """`run` begins the run, or goes on with one that was stopped. Then `counts` says how it went."""

    def __init__(self, settings: ServeSettings, file: Path, output: Path) -> None:
        self.part = output.with_name(output.name + ".part")
        self.counts = RequestCounts()
        self._file = file
        self._output = output
        self._settings = structs.replace(settings, data=str(self.part), usage_days=0)
        self._folder = DataFolder(self.part)
        self._engine = {"model": str(Path(settings.engine.model).resolve()), "quantize": settings.engine.quantize}
        self._core = Core(self._settings)

    async def run(self) -> None:
        """Raises Refusal for a file that cannot be run, and where the output is in the way."""
        if self._output.exists() and not self._folder.exists:
            raise Refusal(f"{self._output} exists: move it away, or give another --output")
        if (self.part / SENT).exists():
            raise Refusal(
                f"{self.part} was begun with --url: give that to go on, delete that folder to begin anew, "
                "or give another --output"
            )
        try:
            id = await self._find_or_create()
        except ApiError as error:
            raise Refusal(error.message) from error
        try:
            async with trio.open_nursery() as nursery:
                with LoadDisplay(standard_error()) as display:
                    ready = await self._core.start(nursery, display, None)
                nursery.start_soon(self._show_progress, id)
                await run_batches(self._settings, self._core, ready, until_idle=True)
                nursery.cancel_scope.cancel()
        finally:
            await self._core.close()
        batch = await self._folder.read(batches.get, id, TENANT)
        if batch.errors is not None:
            self._folder.close()
            shutil.rmtree(self.part)
        refuse_invalid(self._file, batch)
        self.counts = batch.request_counts
        await trio.to_thread.run_sync(self._write, batch)

    async def _find_or_create(self) -> str:
        """The id of the batch in the folder. Raises Refusal if it was begun with other answers in mind."""
        begun_with = {"sha256": await trio.to_thread.run_sync(digest_of, self._file), **self._engine}
        if self._folder.exists:
            self._folder.refuse_if_foreign()
            page = await self._folder.read(partial(batches.page, limit=1), TENANT)
            if page.data:
                (batch,) = page.data
                began = batch.metadata or {}
                words = {
                    "sha256": f"another file than {self._file}",
                    "model": f"the model {began.get('model')}, not {begun_with['model']}",
                    "quantize": f"--quantize {began.get('quantize')}, not {begun_with['quantize']}",
                }
                refuse_other(self.part, began, begun_with, words)
                return batch.id
        endpoint = endpoint_of(self._file, self._settings.limits.max_body_bytes)
        now = int(time.time())
        incoming = IncomingFile(
            self._folder, tenant=TENANT, filename=self._file.name, purpose="batch", keep_seconds=FILE_SECONDS
        )
        with self._file.open("rb") as file:
            async with incoming:
                while data := await trio.to_thread.run_sync(file.read, _COPIED_AT_ONCE):
                    await incoming.write(data)
                await incoming.complete()
        body = CreateBatch(input_file_id=incoming.id, endpoint=endpoint, completion_window="24h", metadata=begun_with)
        return (await self._folder.run(batches.create, body, TENANT, now, YEARS)).id

    async def _show_progress(self, id: str) -> None:
        with batch_progress() as show:
            while True:
                show(await self._folder.read(batches.get, id, TENANT))
                await trio.sleep(LOOK_SECONDS)

    def _write(self, batch: BatchObject) -> None:
        """Answers, then refusals, to the output in one step; then the folder is no longer needed."""
        whole = self.part / "output"
        with whole.open("wb") as output:
            for id in (batch.output_file_id, batch.error_file_id):
                if id is not None:
                    with self._folder.file_path(id).open("rb") as results:
                        shutil.copyfileobj(results, output)
            output.flush()
            os.fsync(output.fileno())
        whole.replace(self._output)
        self._folder.close()
        shutil.rmtree(self.part)

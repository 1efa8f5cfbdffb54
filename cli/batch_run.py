"""One run of `triolet batch`: a server's batch runner on a data folder of its own, `OUTPUT.part`, until the end."""

import os
import shutil
import time
from contextlib import suppress
from functools import partial
from hashlib import file_digest
from pathlib import Path
from typing import Final, get_args

import msgspec
import trio
from msgspec import structs
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from ..actors.batch import batches
from ..actors.batch.check import next_line
from ..actors.batch.folder import DataFolder
from ..actors.batch.incoming import IncomingFile
from ..actors.core import Core
from ..protocol.errors import ApiError
from ..protocol.openai_batches import FILE_SECONDS, BatchEndpoint, BatchLine, BatchObject, CreateBatch, RequestCounts
from ..protocol.settings import ServeSettings
from .batches import run_batches
from .refusals import Refusal
from .report import LoadDisplay, standard_error

YEARS: Final = 10 * 365 * 24 * 3600  # seconds: a batch of one's own does not expire
LOOK_SECONDS: Final = 0.25
TENANT: Final = ""  # as in a server without keys
_COPIED_AT_ONCE: Final = 1 << 20
_LINE: Final = msgspec.json.Decoder(BatchLine)


class BatchRun:
    """`run` begins the run, or goes on with one that was stopped. Then `counts` says how it went."""

    def __init__(self, settings: ServeSettings, file: Path, output: Path) -> None:
        self.part = output.with_name(output.name + ".part")
        self.counts = RequestCounts()
        self._file = file
        self._output = output
        self._settings = structs.replace(settings, data=str(self.part))
        self._folder = DataFolder(self.part)
        self._core = Core(self._settings)

    async def run(self) -> None:
        """Raises Refusal for a file that cannot be run, and where the output is in the way."""
        if self._output.exists() and not self._folder.exists:
            raise Refusal(f"{self._output} exists: move it away, or give another --output")
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
            self._core.close()
        batch = await self._folder.run(batches.get, id, TENANT)
        self._refuse_invalid(batch)
        self.counts = batch.request_counts
        await trio.to_thread.run_sync(self._write, batch)

    async def _find_or_create(self) -> str:
        """The id of the batch in the folder. Raises Refusal if it is of another file."""
        with self._file.open("rb") as file:
            digest = await trio.to_thread.run_sync(lambda: file_digest(file, "sha256").hexdigest())
            if self._folder.exists:
                self._folder.refuse_if_foreign()
                page = await self._folder.run(partial(batches.page, limit=1), TENANT)
                if page.data:
                    (batch,) = page.data
                    if (batch.metadata or {}).get("sha256") != digest:
                        raise Refusal(
                            f"{self.part} was begun with another file than {self._file}: delete that folder to begin "
                            "anew, or give another --output"
                        )
                    return batch.id
            file.seek(0)
            endpoint = self._endpoint_of(next_line(file, self._settings.limits.max_body_bytes))
            file.seek(0)
            now = int(time.time())
            incoming = IncomingFile(
                self._folder, tenant=TENANT, filename=self._file.name, purpose="batch", keep_seconds=FILE_SECONDS
            )
            async with incoming:
                while data := await trio.to_thread.run_sync(file.read, _COPIED_AT_ONCE):
                    await incoming.write(data)
                await incoming.complete()
        body = CreateBatch(
            input_file_id=incoming.id, endpoint=endpoint, completion_window="24h", metadata={"sha256": digest}
        )
        return (await self._folder.run(batches.create, body, TENANT, now, YEARS)).id

    def _endpoint_of(self, line: bytes) -> BatchEndpoint:
        """The url of the first line; the runner checks all others against it."""
        known: tuple[BatchEndpoint, ...] = get_args(BatchEndpoint)
        with suppress(msgspec.MsgspecError, UnicodeDecodeError):
            url = _LINE.decode(line).url
            for endpoint in known:
                if url == endpoint:
                    return endpoint
            raise Refusal(f"{self._file}:1: url is {url[:64]!r}; send {' or '.join(known)}")
        raise Refusal(f"{self._file}:1: the line is not a request; triolet batch --help shows one")

    def _refuse_invalid(self, batch: BatchObject) -> None:
        if batch.errors is not None:
            shutil.rmtree(self.part)
            problems = [f"{self._file}:{error.line or 1}: {error.message}" for error in batch.errors.data]
            raise Refusal("no request was run\n" + "\n".join(problems))

    async def _show_progress(self, id: str) -> None:
        """A bar on a terminal; elsewhere nothing until the end."""
        columns = (TextColumn("  {task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        console = Console(stderr=True)
        with Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal) as progress:
            task = progress.add_task("reading", total=None)
            while True:
                batch = await self._folder.run(batches.get, id, TENANT)
                counts = batch.request_counts
                if batch.status != "validating":
                    progress.update(
                        task, description="answering", total=counts.total, completed=counts.completed + counts.failed
                    )
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

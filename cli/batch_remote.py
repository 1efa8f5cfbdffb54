"""One run of `triolet batch --url`: FILE as a batch of a running server, until every line has its answer.

What is known is in the folder `OUTPUT.part`: which batch was sent, and the results of batches that have ended. So a
command that was stopped or killed goes on where it was, and no line is answered twice: a batch that still runs is
waited for, and of one that was cancelled the lines that did not run are sent again.
"""

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import click
import msgspec
from msgspec import Struct

from ..actors.batch.check import open_lines
from ..protocol.openai_batches import UNENDED, BatchEndpoint, BatchObject, LineResult, RequestCounts
from ..protocol.settings import LimitSettings
from .batch_client import ServerBatches, ServerRefusal
from .batch_file import LINE, digest_of, endpoint_of, refuse_invalid, refuse_other
from .batch_progress import batch_progress
from .refusals import Refusal

LOOK_SECONDS: Final = 0.25
SENT: Final = "sent.json"
_RESULT: Final = msgspec.json.Decoder(LineResult)


class Sent(Struct, frozen=True, kw_only=True):
    """To which server which file goes, and the batch that runs there now."""

    sha256: str
    url: str
    batch: str | None = None


class RemoteBatch:
    """`run` begins the run, or goes on with one that was stopped. Then `counts` says how it went."""

    def __init__(self, url: str, api_key: str | None, file: Path, output: Path) -> None:
        self.part = output.with_name(output.name + ".part")
        self.counts = RequestCounts()
        self._client = ServerBatches(url, api_key)
        self._sent = Sent(sha256=digest_of(file), url=url)
        self._file = file
        self._output = output

    def run(self) -> None:
        """Raises Refusal, what ServerBatches raises, and click.Abort after Ctrl-C if lines are left."""
        if self._output.exists() and not self.part.exists():
            raise Refusal(f"{self._output} exists: move it away, or give another --output")
        endpoint = endpoint_of(self._file, LimitSettings().max_body_bytes)
        if running := self._running():
            self._finish(running)
        if left := self._left():
            self._finish(self._send(left, endpoint))
        if self._left():
            raise click.ClickException(
                "the batch ended there before all its lines had run: it was cancelled or has expired. What is done is "
                f"in {self.part}; the same command goes on from there"
            )
        self._write()

    def _running(self) -> str | None:
        """The batch that an earlier run has sent and not fetched. Raises Refusal if the folder is of another run."""
        if not self.part.exists():
            return None
        try:
            began = msgspec.json.decode((self.part / SENT).read_bytes(), type=Sent)
        except (FileNotFoundError, msgspec.MsgspecError):
            raise Refusal(
                f"{self.part} was begun without --url: leave that out to go on, delete that folder to begin anew, "
                "or give another --output"
            ) from None
        words = {"sha256": f"another file than {self._file}", "url": f"--url {began.url}, not {self._sent.url}"}
        refuse_other(
            self.part,
            {"sha256": began.sha256, "url": began.url},
            {"sha256": self._sent.sha256, "url": self._sent.url},
            words,
        )
        self._sent = began
        return began.batch

    def _left(self) -> Path | None:
        """A file with the lines that have no answer yet; None if there are none."""
        answered = {result.custom_id for _, result in self._results()}
        if not answered:
            return self._file
        left = self.part / "left.jsonl"
        with open_lines(self._file) as lines, left.open("wb") as unanswered:
            for line in lines:
                if line.strip() and LINE.decode(line).custom_id not in answered:
                    unanswered.write(line)
        return left if left.stat().st_size else None

    def _send(self, lines: Path, endpoint: BatchEndpoint) -> str:
        batch = self._client.create(self._client.upload(lines), endpoint)
        self.part.mkdir(exist_ok=True)
        self._note(batch.id)
        return batch.id

    def _note(self, batch: str | None) -> None:
        arriving = self.part / "arriving"
        arriving.write_bytes(msgspec.json.encode(msgspec.structs.replace(self._sent, batch=batch)))
        arriving.replace(self.part / SENT)

    def _finish(self, id: str) -> None:
        """Wait for the batch's end, and fetch what its lines gave. Ctrl-C cancels it."""
        stopped = False
        try:
            batch = self._follow(id)
        except KeyboardInterrupt:
            stopped = True
            click.echo("\ncancelling; Ctrl-C again leaves the batch running there", err=True)
            with suppress(ServerRefusal):  # it has just ended
                self._client.cancel(id)
            batch = self._follow(id)
        if batch is not None:
            self._fetch(batch)
        self._note(None)
        if stopped and self._left():
            raise click.Abort

    def _follow(self, id: str) -> BatchObject | None:
        """The batch, once it has ended; None if the server has forgotten it."""
        with batch_progress() as show:
            while True:
                try:
                    batch = self._client.batch(id)
                except ServerRefusal as error:
                    if error.status == 404:
                        return None
                    raise
                show(batch)
                if batch.status not in UNENDED:
                    return batch
                time.sleep(LOOK_SECONDS)

    def _fetch(self, batch: BatchObject) -> None:
        """Its results to this machine, in one step; then its files are no longer needed there."""
        arriving = self.part / "arriving"
        arriving.unlink(missing_ok=True)
        results = [id for id in (batch.output_file_id, batch.error_file_id) if id is not None]
        for id in results:
            self._client.download(id, arriving)
        if results:
            arriving.replace(self.part / f"{batch.id}.jsonl")
        for id in (batch.input_file_id, *results):
            with suppress(ServerRefusal):  # another batch reads it
                self._client.delete(id)
        if batch.errors is not None:
            shutil.rmtree(self.part)
        refuse_invalid(self._file, batch)

    def _results(self) -> Iterator[tuple[bytes, LineResult]]:
        """Lines that ran, answered or refused."""
        for path in sorted(self.part.glob("batch_*.jsonl")):
            with path.open("rb") as lines:
                for line in lines:
                    result = _RESULT.decode(line)
                    if result.response is not None:
                        yield line, result

    def _write(self) -> None:
        """Answers, then refusals, to the output in one step; then the folder is no longer needed."""
        whole = self.part / "output"
        counts = [0, 0]
        with whole.open("wb") as output:
            for failed in (False, True):
                for line, result in self._results():
                    if (result.response is None or result.response.status_code != 200) == failed:
                        output.write(line)
                        counts[failed] += 1
            output.flush()
            os.fsync(output.fileno())
        whole.replace(self._output)
        shutil.rmtree(self.part)
        self.counts = RequestCounts(total=sum(counts), completed=counts[0], failed=counts[1])

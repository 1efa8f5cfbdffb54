"""The beginning and the end of a child process."""

import os
import signal

import msgspec

from triolet.actors.supervisor.child_process import start_worker
from triolet.actors.supervisor.link import Link
from triolet.protocol.settings import EngineSettings
from triolet.protocol.steps import FromWorker, LoadFailed


async def test_a_bus_error_is_told_with_its_likely_cause() -> None:
    """Weights are mapped from the checkpoint's files: where a file was truncated, reading them ends the process."""
    worker = start_worker(EngineSettings(model="none"))
    os.kill(worker.pid, signal.SIGBUS)
    assert "killed by SIGBUS: a file of the checkpoint was truncated" in await worker.end()


async def test_signals_to_the_group_do_not_end_a_child_that_has_just_begun() -> None:
    """As Ctrl-C does while a lost worker is being replaced: its interpreter has not run a line yet."""
    worker = start_worker(EngineSettings(model="none"))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(worker.pid, number)
    assert isinstance(await Link(worker.stream, msgspec.msgpack.Decoder[FromWorker](FromWorker)).receive(), LoadFailed)
    assert (await worker.end()).endswith("exited with status 0")


async def test_the_parent_still_hears_its_signals() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    await start_worker(EngineSettings(model="none")).end(grace=0)
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before

"""A real `triolet serve` whose worker is stopped before it has loaded its model, until the test lets it go on."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import NamedTuple

SCRIPT = """
import os, signal, sys
from triolet.actors.supervisor import child_process
from triolet.cli.serve import serve

start_worker = child_process.start_worker

def start_stopped(settings):
    worker = start_worker(settings)
    os.kill(worker.pid, signal.SIGSTOP)
    print(worker.pid, flush=True)
    return worker

child_process.start_worker = start_stopped
serve(sys.argv[1:])
"""
LISTENING = re.compile(r"  listening at (\S+); the model is being loaded\n")


class HeldServer(NamedTuple):
    process: subprocess.Popen[str]
    url: str
    worker: int

    def let_load(self) -> str:
        """Let the worker go on; returns the line on standard output when the server is ready."""
        os.kill(self.worker, signal.SIGCONT)
        assert self.process.stdout is not None
        return self.process.stdout.readline()


@contextmanager
def held_server(*options: str) -> Generator[HeldServer]:
    command = [sys.executable, "-c", SCRIPT, "--port", "0", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            worker = int(process.stdout.readline())
            said: list[str] = []
            while not (found := LISTENING.fullmatch(line := process.stderr.readline())):
                said.append(line)
                assert line, said
            yield HeldServer(process, found[1], worker)
        finally:
            process.kill()

"""Triton interprets in tests. And for every test that wants one, a real `triolet serve` over TCP, with its worker
process and the bundled model.
"""

import gc
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from triolet.kernels.gpu.mode import interpret_kernels

gc.disable()  # until all tests are collected: half of the time that takes would go into looking at what is kept anyway

# Before anything imports Triton. A process that interprets cannot compile: compiling is tested in processes of its own.
interpret_kernels()

# The settings of whoever runs the tests are not those of the servers in them.
for name in [name for name in os.environ if name.startswith("TRIOLET_")]:
    del os.environ[name]
# Of torch and numpy, in tests and in what they start. A second thread for matrices this small only waits, and takes a
# core from another process of tests for it.
os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"
os.environ["TRIOLET_CONFIG"] = os.devnull  # a triolet.toml in this folder is not read
# Started in the background by a shell, tests ignore Ctrl-C, and so would every program that they start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)
_state = tempfile.TemporaryDirectory(prefix="triolet-tests-")
os.environ["XDG_STATE_HOME"] = _state.name  # nor does a test write among the user's own files and batches

READY_LINE = "Triolet is ready at "
STOP_SECONDS = 30.0  # for an idle server to leave; it takes well under one


# Half a minute or more of one core each. They begin first, so that at the end no process waits for another's long file.
LONGEST_FILES = (
    "kernels/gpu/test_gpu_gemm_compiled.py",
    "loadtest/device/test_gpu_suite.py",
    "kernels/test_other_cpus.py",
    "loadtest/test_web_bench.py",
    "actors/test_simulation.py",
    "docs/test_commands.py",
    "loadtest/device/test_gpu_bench.py",
    "actors/scheduler/test_plan_properties.py",
    "e2e/test_interpreted_kernels.py",
    "loadtest/serve/test_compare.py",
    "cli/test_serve.py",
    "cli/test_several_models.py",
    "cli/test_bench_peers.py",
    "test_packaging.py",
)
TESTS = Path(__file__).parent
AUDIT = TESTS / "audit"  # what no server may do


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    place = {(TESTS / name).resolve(strict=True): number for number, name in enumerate(LONGEST_FILES)}
    items.sort(key=lambda item: place.get(item.path, len(place)))


def pytest_collection_finish() -> None:
    """Thousands of tests and their modules stay until the end: no collection looks at them again."""
    gc.freeze()
    gc.enable()


class Certificate(NamedTuple):
    """A self-signed certificate for localhost and 127.0.0.1, and its key; PEM files."""

    certfile: str
    keyfile: str


MakeCertificate = Callable[[], Certificate]


@pytest.fixture(scope="session")
def make_certificate(tmp_path_factory: pytest.TempPathFactory) -> MakeCertificate:
    """A new certificate at every call."""
    if (openssl := shutil.which("openssl")) is None:
        pytest.skip("no openssl command here to make a certificate with")

    def make() -> Certificate:
        folder = tmp_path_factory.mktemp("certificate")
        made = Certificate(str(folder / "cert.pem"), str(folder / "key.pem"))
        command = f"{openssl} req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
        names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
        files = ["-keyout", made.keyfile, "-out", made.certfile]
        subprocess.run([*command.split(), *names, *files], check=True, capture_output=True)
        return made

    return make


class Server(NamedTuple):
    """A running server: its address, the front's process id and what it has written to standard error so far."""

    url: str
    pid: int
    log: Path


@contextmanager
def running_server(log: Path, *options: str) -> Generator[Server]:
    port = () if "--uds" in options else ("--port", "0")
    small = ("--kv-cache-memory", "384MiB")  # many run at the same time
    command = [str(Path(sys.executable).with_name("triolet")), "serve", *small, *port, *options]
    audit = log.with_name(f"{log.name}-audit")
    audit.mkdir()
    own = os.environ | {
        "XDG_STATE_HOME": str(log.parent / "state"),  # two servers do not share a folder of batches
        "AUDIT_FOLDER": str(audit),
        "PYTHONPATH": os.pathsep.join(filter(None, (str(AUDIT), os.environ.get("PYTHONPATH")))),
    }
    with (
        log.open("wb") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=own) as process,
    ):
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            assert line.startswith(READY_LINE), log.read_text()
            (audit / "serving").touch()
            yield Server(line.removeprefix(READY_LINE).strip(), process.pid, log)
            assert len(list(audit.glob("*.hooked"))) >= 2, "the server and its worker have the audit hook"
            done = "\n".join(file.read_text() for file in audit.glob("*.txt"))
            assert not done, f"the server did what it never should:\n{done}"
            assert process.poll() is None, log.read_text()
            process.terminate()
            assert process.wait(STOP_SECONDS) == 0, log.read_text()
        finally:
            process.kill()


@pytest.fixture(scope="session")
def serve_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Server]]:
    """Starts a server with the options given; all of them stop, with exit code 0, when the session ends."""
    with ExitStack() as servers:

        def start(*options: str) -> Server:
            return servers.enter_context(running_server(tmp_path_factory.mktemp("serve") / "log", *options))

        yield start


@pytest.fixture(scope="session")
def server(serve_process: Callable[..., Server]) -> Server:
    """The server that tests share: the bundled model, default options. Leave it as you found it."""
    return serve_process()

"""The client of `triolet batch --url` before a server, or a proxy, that breaks off or is another program."""

import socket
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import click
import pytest

from triolet.cli.batch_client import ServerBatches


@contextmanager
def answering(answer: bytes) -> Generator[ServerBatches]:
    """The client of a peer that answers one request, and closes."""

    def answer_once() -> None:
        connection, _ = listener.accept()
        with connection:
            while b"\r\n\r\n" not in connection.recv(65536):
                pass
            connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        peer = Thread(target=answer_once)
        peer.start()
        yield ServerBatches(f"http://127.0.0.1:{listener.getsockname()[1]}", None)
        peer.join()


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 9\r\n\r\n{}\n{}",
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n9\r\n{}\n{}",
    ],
)
def test_results_that_are_cut_off_are_no_results(tmp_path: Path, answer: bytes) -> None:
    with answering(answer) as server, pytest.raises(click.ClickException, match="was cut off"):
        server.download("file-1", tmp_path / "arriving")


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 9\r\n\r\n{}", "was cut off"),
        (
            b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 6\r\n\r\n<html>",
            "does not answer as a Triolet server does",
        ),
    ],
)
def test_an_answer_of_something_else(answer: bytes, words: str) -> None:
    with answering(answer) as server, pytest.raises(click.ClickException, match=words):
        server.batch("batch_1")


def test_whole_results(tmp_path: Path) -> None:
    with answering(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\n{}\n{}") as server:
        server.download("file-1", tmp_path / "arriving")
    assert (tmp_path / "arriving").read_bytes() == b"{}\n{}"

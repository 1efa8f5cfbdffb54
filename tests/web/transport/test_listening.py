"""Sockets to listen on: who may use them, and what happens to those that are there already."""

import os
import socket
import stat
from pathlib import Path

import pytest

from triolet.web.transport.listening import bind_tcp, refuse_used_path, unix_socket, url_of


def test_a_unix_socket_is_for_its_owner_alone_and_gone_afterwards(tmp_path: Path) -> None:
    path = tmp_path / "server.sock"
    with unix_socket(str(path)):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
    assert not path.exists()


def test_a_stale_socket_is_replaced_and_a_used_one_is_not(tmp_path: Path) -> None:
    path = str(tmp_path / "server.sock")
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(path)
    stale.close()  # its file stays
    with unix_socket(path) as sock:
        assert sock.getsockname() == path
        with pytest.raises(OSError, match="another server"), unix_socket(path):
            pass
        assert os.path.exists(path)


def test_a_file_that_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("mine")
    with pytest.raises(FileExistsError, match="no socket"):
        refuse_used_path(str(path))
    assert path.read_text() == "mine"


def test_a_socket_that_took_the_place_of_ours_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "server.sock"
    with unix_socket(str(path)):
        path.unlink()
        path.write_text("another's")
        os.link(path, tmp_path / "kept")
    assert path.exists()


def test_a_shared_port_may_be_bound_twice_and_another_may_not() -> None:
    (first,) = bind_tcp("127.0.0.1", 0, shared=True)
    with first:
        port = first.getsockname()[1]
        (second,) = bind_tcp("127.0.0.1", port, shared=True)
        second.close()
        first.listen()
        with pytest.raises(OSError, match="in use"):
            bind_tcp("127.0.0.1", port)


def test_addresses_as_urls() -> None:
    assert url_of(socket.AF_INET, ("127.0.0.1", 80), secure=False) == "http://127.0.0.1:80"
    assert url_of(socket.AF_INET6, ("::1", 80, 0, 0), secure=True) == "https://[::1]:80"
    assert url_of(socket.AF_UNIX, "/run/a b.sock", secure=False) == "unix:/run/a%20b.sock"

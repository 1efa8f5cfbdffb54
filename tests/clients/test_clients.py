"""Clients of other projects, as their users install them, against `triolet serve`: `make clients` installs them."""

from pathlib import Path

import pytest

from ..conftest import Server
from .catalogue import CLIENTS, Client, Record, check, plain_answers, run
from .page import PAGE, rows
from .tools import TOOLS, Tool
from .tools import run as run_tool


@pytest.fixture(scope="module")
def plain(server: Server) -> Record:
    return plain_answers(server.url)


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: Path(client.program).name)
def test_a_client_streams_goes_on_and_knows_its_errors(client: Client, server: Server, plain: Record) -> None:
    if client.missing:
        pytest.skip(client.missing)
    check(client, run(client, server.url), plain)


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: Path(tool.program).name)
def test_a_tool_works(tool: Tool, server: Server) -> None:
    if tool.missing:
        pytest.skip(tool.missing)
    assert run_tool(tool, server.url) == tool.result


def test_the_page_has_the_versions_that_are_installed() -> None:
    """It is written by `make clients`."""
    assert "\n".join(rows()) in PAGE.read_text()

"""`make clients`: runs every client, says what each did, and renews docs/clients.md if all agree."""

import datetime
import platform
import subprocess
import tempfile
from pathlib import Path

from ..conftest import running_server
from .catalogue import CLIENTS, check, plain_answers, run
from .page import PAGE, write
from .tools import TOOLS
from .tools import run as run_tool


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, running_server(Path(folder, "log")) as server:
        plain = plain_answers(server.url)
        for client in CLIENTS:
            assert not client.missing, f"{client.name}: {client.missing}"
            print(f"{client.name} {client.version}…", flush=True)
            check(client, run(client, server.url), plain)
        for tool in TOOLS:
            assert not tool.missing, f"{tool.name}: {tool.missing}"
            print(f"{tool.name}…", flush=True)
            assert run_tool(tool, server.url) == tool.result
    node = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True).stdout.strip().lstrip("v")
    write(datetime.date.today().isoformat(), platform.python_version(), node)
    print(f"All agree; wrote {PAGE}.")


main()

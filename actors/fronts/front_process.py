"""A web process: its sockets, its first message and its end. The command line names the module that it runs."""

import socket
from collections.abc import Sequence

from ...protocol.fronts import OpenFront
from ..supervisor.child_process import ChildProcess


class FrontProcess(ChildProcess):
    """A running front, told its settings; it listens on `sockets`, of which this process may close its own."""

    def __init__(self, module: str, first: OpenFront, sockets: Sequence[socket.socket]) -> None:
        super().__init__("web", module, first, sockets=sockets)

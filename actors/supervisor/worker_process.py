"""The worker as an operating-system process.

It loads while the front still imports its web: what to load is written into the socket before anybody reads, and
importing this module takes no event loop.
"""

from ...protocol.settings import EngineSettings
from ...protocol.steps import LoadModel
from .child_process import ChildProcess


class WorkerProcess(ChildProcess):
    """A running worker, told to load a model."""

    def __init__(self, settings: EngineSettings) -> None:
        super().__init__("worker", "triolet.actors.executor.worker", LoadModel(settings=settings))

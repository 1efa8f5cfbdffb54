"""The gateways of several models as one, for what the web does with all of them.

A request is submitted at its model's own gateway. What is said of a request later is said to all: an id belongs to one
of them, and unknown ids are fine.
"""

from collections.abc import Callable
from itertools import count
from typing import Final

from ...protocol.errors import ApiError, ErrorCode
from ...protocol.events import FinishReason
from ...protocol.reports import KeptFigures
from ..supervisor.worker_status import WorkerStatus
from .accounts import Accounts
from .gateway import Gateway, process_name
from .history import History
from .quotas import Quotas

_SHUTTING_DOWN: Final[tuple[ErrorCode, str]] = ("shutting_down", "the server is shutting down")


class Gateways:
    """The gateways of the models that are loaded; who loads and unloads them calls `add` and `remove`."""

    def __init__(self, quotas: Quotas | None = None) -> None:
        self.quotas = quotas or Quotas()  # of all models together
        self.worker = WorkerStatus()  # said to every WebSocket: of no model, since each has a worker of its own
        self.worker.state = "ready"
        self.accounts = Accounts()  # of what concerns no model
        self.kept = KeptFigures()
        self.on_news: set[Callable[[], None]] = set()
        self.refuses_new = False
        self._all: dict[str, Gateway] = {}
        self._process = process_name()
        self._numbers = count(1)

    def add(self, model: str, gateway: Gateway) -> None:
        self._all[model] = gateway
        if self.refuses_new:
            gateway.refuse_new(*_SHUTTING_DOWN)

    def remove(self, model: str) -> None:
        self._all.pop(model, None)

    def new_id(self) -> str:
        """An id for the next request of any model."""
        return f"{self._process}-{next(self._numbers):x}"

    def is_own(self, request_id: str) -> bool:
        return request_id.startswith(f"{self._process}-")

    def cancel(self, request_id: str, reason: FinishReason = "cancelled") -> None:
        for gateway in self._all.values():
            gateway.cancel(request_id, reason)

    def grant(self, request_id: str, tokens: int) -> None:
        for gateway in self._all.values():
            gateway.grant(request_id, tokens)

    def fail(self, request_id: str, error: ApiError) -> None:
        for gateway in self._all.values():
            gateway.fail(request_id, error)

    def fail_all(self, error: ApiError) -> None:
        for gateway in self._all.values():
            gateway.fail_all(error)

    def refuse_new(self) -> None:
        """The server shuts down: from now on every model refuses requests, also one that is loaded later."""
        self.refuses_new = True
        for gateway in self._all.values():
            gateway.refuse_new(*_SHUTTING_DOWN)
        for tell in tuple(self.on_news):
            tell()

    @property
    def live_requests(self) -> int:
        return sum(gateway.live_requests for gateway in self._all.values())

    async def wait_idle(self) -> None:
        """Wait until no model has a live request."""
        for gateway in tuple(self._all.values()):
            await gateway.wait_idle()

    def history(self, wanted: str, tenant: str) -> History | None:
        found = (gateway.history(wanted, tenant) for gateway in self._all.values())
        return next((history for history in found if history is not None), None)

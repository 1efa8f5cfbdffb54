"""The messages between the scheduler's process and the web processes ("fronts"), each over its own link.

    front:  web · gateway · tokenizer · admission · detokenizer      <=>      scheduler · supervisor == worker

Messages of actors travel in bundles: one frame holds everything that waits. So a step costs one frame per front,
however many streams it moves.
"""

from typing import Literal

from msgspec import Struct

from .adapters import Adapter
from .errors import ErrorCode
from .message import Message
from .messages import Admit, Cancel, Credit, DropRequest, StepTokens, Stop
from .reports import Loading, WorkerState
from .settings import ServeSettings
from .steps import Ping, Pong, Ready

FromFrontActors = Admit | Cancel | Credit | Stop
Question = Literal[
    "own_report",  # a front's own figures
    "report",  # the whole server's figures
    "health",  # the whole server's
    "about",  # what a dashboard receives first, and again for each new worker
    "view",  # what a dashboard shows
    "recording",  # what the flight recorder has
    "standing",  # where the request `id` stands in the scheduler
    "offer_adapter",  # let all fronts know `adapter`: Refused, or nothing
    "replace_adapter",  # the same, in place of one with its name
    "remove_adapter",  # let no front know the adapter `id` any more: Refused, or nothing
    "explain",  # explain the request that `tenant` calls `id`, by whichever front holds it
]


class OpenFront(Message, frozen=True, kw_only=True):
    """scheduler -> front, the first message: serve with these settings. `limits` are this front's part of the whole.

    `process` is the prefix of its request ids. `clock` is the scheduler's time minus the machine's monotonic clock,
    which all processes share: times cross the link in the scheduler's time.
    `waits`: accept no connection before `Listen`.
    """

    process: str
    settings: ServeSettings
    clock: float
    waits: bool = False


class WorkerNews(Message, frozen=True, kw_only=True):
    """scheduler -> front: what the worker is doing now; `ready` is the last Ready message."""

    state: WorkerState
    reason: str
    ready: Ready | None
    loading: Loading | None = None


class AdapterNews(Message, frozen=True, kw_only=True):
    """scheduler -> front: the LoRA adapters that requests may name."""

    adapters: tuple[Adapter, ...]


class Refused(Struct, frozen=True, kw_only=True):
    """The answer to a question that is not granted: an ApiError."""

    code: ErrorCode
    message: str
    param: str | None


class ChoiceOpened(Message, frozen=True, kw_only=True):
    """scheduler -> front: `OpenChoice` without the request and its prompts, which the front has kept."""

    id: str
    index: int
    cached_tokens: int


ForFront = ChoiceOpened | StepTokens | DropRequest


class Texts(Message, frozen=True, kw_only=True):
    """scheduler -> front: messages for its detokenizer, in order."""

    texts: tuple[ForFront, ...]


class Mail(Message, frozen=True, kw_only=True):
    """front -> scheduler: messages from its gateway, admission and detokenizer, in order."""

    messages: tuple[FromFrontActors, ...]


class FrontReady(Message, frozen=True, kw_only=True):
    """front -> scheduler: it serves requests, or could. Before, it answers that the model is being loaded."""


class Listen(Message, frozen=True, kw_only=True):
    """scheduler -> front: accept connections. The server before this one does so no longer."""


class Inquiry(Message, frozen=True, kw_only=True):
    """Either way: a question, answered by the InquiryAnswer with its number."""

    number: int
    question: Question
    id: str = ""
    tenant: str = ""
    adapter: Adapter | None = None


class InquiryAnswer(Message, frozen=True, kw_only=True):
    """Either way: the answer, a msgpack Struct that the question implies.

    These are declared in reports.py, explanation.py, engine_view.py and flight.py.
    """

    number: int
    body: bytes


class Drain(Message, frozen=True, kw_only=True):
    """scheduler -> front: accept nothing new, let running answers finish within the drain timeout, then exit.

    `at_once`, sent after the first: end the running answers now. `handed_over`: another server listens on the same
    sockets, and the answers get the time for that.
    """

    at_once: bool = False
    handed_over: bool = False


class ReloadCertificate(Message, frozen=True, kw_only=True):
    """scheduler -> front: read the TLS files again."""


ToFront = (
    OpenFront | Listen | WorkerNews | AdapterNews | Texts | Inquiry | InquiryAnswer | Drain | ReloadCertificate | Ping
)
FromFront = FrontReady | Mail | Inquiry | InquiryAnswer | Pong

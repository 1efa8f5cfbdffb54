"""The conversation between the scheduler's process and the web processes ("fronts"), over a link of its own for each.

    front:  web · gateway · tokenizer · admission · detokenizer      <=>      scheduler · supervisor == worker

What the actors say to each other travels in bundles: one frame for everything that waits, so a step costs one frame
and each front, however many streams it moves.
"""

from typing import Literal

from msgspec import Struct

from .message import Message
from .messages import Admit, Cancel, Credit, DropRequest, StepText, StepTokens, Stop
from .settings import ServeSettings
from .steps import Ping, Pong, Ready

FromFrontActors = Admit | Cancel | Credit | Stop
Question = Literal[
    "report",  # a front's own figures
    "server",  # those of the whole server
    "health",  # of the whole server
    "about",  # what a dashboard is told first, and again when there is another worker
    "view",  # what a dashboard shows
    "standing",  # where the request `id` stands in the scheduler
    "explain",  # a front's explanation of the request that `tenant` calls `id`; or that of the front that has it
]


class OpenFront(Message, frozen=True, kw_only=True):
    """scheduler -> front, the first message: serve with these settings. `limits` are this front's part of the whole.

    `process` begins the ids of its requests. `clock` is the scheduler's time less the machine's monotonic clock, which
    all processes share: times cross the link in the scheduler's time.
    """

    process: str
    settings: ServeSettings
    clock: float


class WorkerNews(Message, frozen=True, kw_only=True):
    """scheduler -> front: what the worker is doing now; `ready` as it last was."""

    state: Literal["loading", "ready", "restarting", "failed"]
    reason: str
    ready: Ready | None


class ChoiceOpened(Message, frozen=True, kw_only=True):
    """scheduler -> front: `OpenChoice`, less the request and its prompts, which the front has kept."""

    id: str
    index: int
    cached_tokens: int


class StepAgain(Message, frozen=True, kw_only=True):
    """scheduler -> front: `StepTokens` of the same requests as the last one on this link."""

    rows: tuple[tuple[int, ...], ...]


ForFront = ChoiceOpened | StepTokens | StepAgain | StepText | DropRequest


class Texts(Message, frozen=True, kw_only=True):
    """scheduler -> front: what its detokenizer must hear, in order."""

    texts: tuple[ForFront, ...]


class Mail(Message, frozen=True, kw_only=True):
    """front -> scheduler: what its gateway, admission and detokenizer say, in order."""

    messages: tuple[FromFrontActors, ...]


class FrontReady(Message, frozen=True, kw_only=True):
    """front -> scheduler: it takes requests at these URLs."""

    urls: tuple[str, ...]


class Ask(Message, frozen=True, kw_only=True):
    """Either way: a question, answered by the Answer with its number."""

    number: int
    question: Question
    id: str = ""
    tenant: str = ""


class Answer(Message, frozen=True, kw_only=True):
    """Either way: the answer, a msgpack Struct that the question implies.

    They are in actors/observe/reports.py, explanation.py and engine_view.py.
    """

    number: int
    body: bytes


class Drain(Message, frozen=True, kw_only=True):
    """scheduler -> front: take nothing new, let running answers finish within the drain timeout, then exit."""


class ReloadCertificate(Message, frozen=True, kw_only=True):
    """scheduler -> front: read the TLS files again."""


class HistogramFigures(Struct, frozen=True, array_like=True):
    """Observations per bucket, and their sum."""

    counts: tuple[int, ...]
    sum: float


ToFront = OpenFront | WorkerNews | Texts | Ask | Answer | Drain | ReloadCertificate | Ping
FromFront = FrontReady | Mail | Ask | Answer | Pong

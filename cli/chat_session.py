"""A chat: questions and commands in, answers out, until the user leaves.

Ctrl-C stops the running answer, whose text stays in the conversation; a second one does not wait for the server.
"""

import signal
import sys
from contextlib import ExitStack
from typing import Final, Protocol

import trio

from ..protocol.openai_responses import ModelCard
from .chat_client import Answer, AnswerError, ChatClient
from .chat_commands import COMMANDS, change_setting, change_system, explain_commands, load, save
from .chat_conversation import ChatCommandError, ChatConversation
from .chat_display import Display, PlainDisplay, TerminalDisplay, no_echo
from .chat_lines import PlainLines

QUOTED: Final = 60  # characters of the first question that is left out


class Lines(Protocol):
    async def read(self, default: str = "") -> str | None:
        """The next question or command; None at the end. On a terminal `default` is there to be edited."""
        ...


class ChatSession:
    """One conversation with one server."""

    def __init__(self, client: ChatClient, model: ModelCard, conversation: ChatConversation, display: Display) -> None:
        self._client = client
        self._model = model
        self._conversation = conversation
        self._display = display
        self._answers: list[Answer] = []
        self._stop: trio.Event | None = None  # while an answer runs
        self._answering = trio.CancelScope()
        self._editing = False  # the next question takes the place of the last one

    def status(self) -> str:
        """One line for the prompt: the model, and how full its context is."""
        return f"{self._model.id} · context {self._context()} · /help"

    def interrupt(self) -> bool:
        """Ctrl-C: stop the running answer. False if there is none."""
        if self._stop is None:
            return False
        if self._stop.is_set():
            self._answering.cancel()
        self._stop.set()
        return True

    async def converse(self, lines: Lines) -> None:
        """Questions and answers until the input ends or is /exit."""
        while True:
            default = (self._conversation.last_question or "") if self._editing else ""
            line = await lines.read(default)
            if line is None:
                return
            if line.startswith("/"):
                self._editing = False
                if not await self._run(*_split(line)):
                    return
            elif line.strip():
                if self._editing or self._conversation.question is not None:
                    self._conversation.take_back()  # an unanswered question would give two user turns in a row
                self._editing = False
                await self._ask(line.strip())

    async def _run(self, command: str, argument: str) -> bool:
        """Run a command. False if the user leaves."""
        conversation, note = self._conversation, self._display.note
        try:
            match command:
                case "/retry" | "/edit":
                    question = conversation.last_question
                    if question is None:
                        raise ChatCommandError("there is no question yet")
                    if command == "/edit":
                        self._editing = True
                    else:
                        conversation.take_back()
                        await self._ask(question)
                case "/clear":
                    conversation.clear()
                    self._answers.clear()
                    note("a new conversation")
                case "/system":
                    note(change_system(conversation, argument))
                case "/set":
                    note(change_setting(conversation, argument))
                case "/save":
                    note(save(conversation, argument, self._model.id))
                case "/load":
                    note(load(conversation, argument))
                    self._answers.clear()
                case "/stats":
                    note(self._statistics())
                case "/help":
                    note(explain_commands())
                case "/exit":
                    return False
                case _:
                    raise ChatCommandError(
                        f"no command {command}; there are {', '.join(COMMANDS)}. "
                        "A question that begins with / needs a blank before it"
                    )
        except ChatCommandError as error:
            self._display.error(str(error))
        return True

    async def _ask(self, question: str) -> None:
        """Get the answer to a question. Without one the question stays, for /retry and /edit."""
        conversation, display = self._conversation, self._display
        conversation.question = question
        parts: list[str] = []
        answer: Answer | None = None
        ended: AnswerError | None = None
        self._stop, self._answering = trio.Event(), trio.CancelScope()
        try:
            with self._answering:
                request = await self._fitting_request()
                async with display.answer() as show:

                    def receive(text: str) -> None:
                        parts.append(text)
                        show(text)

                    try:
                        answer = await self._client.answer(request, show=receive, note=display.note, stop=self._stop)
                    except AnswerError as error:
                        ended = error  # the display's nursery would wrap it
                if answer is not None:
                    conversation.answered("".join(parts))
                    self._answers.append(answer)
                    display.note(_described(answer))
        except AnswerError as error:
            ended = error
        finally:
            self._stop = None
        if answer is None:
            display.error(f"{ended or 'stopped'}\n/retry asks again, /edit changes the question")

    async def _fitting_request(self) -> dict[str, object]:
        """The request, with as many of the latest turns as leave room for an answer. Says what it leaves out."""
        conversation, context_length = self._conversation, self._model.max_model_len
        before = conversation.left_out
        wanted = conversation.wanted_room(context_length)
        while True:
            request = conversation.request(self._model.id, context_length)
            room = context_length - await self._client.count_tokens(request)
            if room >= wanted or not conversation.leave_out_oldest():
                break
        if left_out := conversation.turns[before : conversation.left_out]:
            first = " ".join(left_out[0].question.split())
            quoted = first if len(first) <= QUOTED else f"{first[:QUOTED]}…"
            others = f" and {len(left_out) - 1} after it" if len(left_out) > 1 else ""
            self._display.note(
                f"The context of {context_length:,} tokens is full. The model no longer sees "
                f"the question “{quoted}”{others}, with the answer{'s' if others else ''}."
            )
        return conversation.request(self._model.id, room)

    def _context(self) -> str:
        used = sum(self._answers[-1][1:3]) if self._answers else 0
        longest = self._model.max_model_len
        return f"{used:,} of {longest:,} tokens ({100 * used / longest:.0f} %)"

    def _statistics(self) -> str:
        tokens = sum(answer.tokens for answer in self._answers)
        left_out = self._conversation.left_out
        unseen = f", of which the model no longer sees the {left_out} oldest" if left_out else ""
        rows = {
            "context": self._context(),
            "turns": f"{len(self._conversation.turns)}{unseen}",
            "answers": f"{len(self._answers)} with {tokens:,} tokens",
            "last one": _described(self._answers[-1]) if self._answers else "none yet",
        }
        return "\n".join(f"{label:<9} {text}" for label, text in rows.items())


def _split(line: str) -> tuple[str, str]:
    command, _, argument = line.partition(" ")
    return command.strip(), argument.strip()


def _described(answer: Answer) -> str:
    rate = f", {answer.tokens_per_second:.0f} tokens/s" if answer.tokens_per_second else ""
    end = "" if answer.reason == "stop" else f", ended by {answer.reason}"
    return f"{answer.tokens} tokens, first after {answer.first_seconds * 1000:.0f} ms{rate}{end}"


async def chat_with(url: str, api_key: str | None, conversation: ChatConversation) -> None:
    """Talk with the server at `url` until the user leaves. Raises click.ClickException if there is none."""
    client = ChatClient(url, api_key)
    model = await client.model()
    on_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    display = TerminalDisplay() if on_terminal else PlainDisplay()
    session = ChatSession(client, model, conversation, display)
    display.note(f"{model.id} at {url}. Ctrl-C stops an answer, /help lists the commands, /exit leaves.")
    with ExitStack() as terminal:
        lines: Lines = PlainLines(sys.stdin.fileno())
        if on_terminal:
            from .chat_prompt import EditedLines, open_history  # which a pipe need not wait for

            terminal.enter_context(no_echo(sys.stdin.fileno()))
            lines = EditedLines(open_history(display.note), session.status)
        await _converse_under_signals(session, lines, on_terminal)


async def _converse_under_signals(session: ChatSession, lines: Lines, on_terminal: bool) -> None:
    """Ctrl-C stops an answer. Other signals, and Ctrl-C between answers in a pipe, end the chat in an orderly way.

    On a terminal the prompt reads Ctrl-C as a key. As a signal it was meant for an answer that has just ended.
    """
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals:
        async with trio.open_nursery() as nursery:

            async def watch_signals() -> None:
                async for number in signals:
                    if number != signal.SIGINT or not (session.interrupt() or on_terminal):
                        nursery.cancel_scope.cancel()

            nursery.start_soon(watch_signals)
            await session.converse(lines)
            nursery.cancel_scope.cancel()

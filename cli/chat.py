"""`triolet chat`: a conversation in the terminal, over the same WebSocket as the chat page.

With --url it talks to a running server; without, it starts one on a free port and ends it afterwards. Ctrl-C stops the
running answer. chat_session.py is the conversation, chat_prompt.py the line editor.
"""

from functools import partial
from typing import TYPE_CHECKING, Any

import click

from ..protocol.settings import model_name
from .help import SettingsCommand
from .names import with_local_models
from .options import build_settings, engine_options
from .refusals import Refusal
from .values import CLIENT_KEY, SERVER_URL

if TYPE_CHECKING:
    from ..protocol.settings import ServeSettings
    from ..protocol.steps import Ready


@click.command(cls=SettingsCommand)
@engine_options
@click.option(
    "--url",
    type=SERVER_URL,
    help="A running server, such as http://127.0.0.1:8000. Then MODEL and its options are not used.",
)
@click.option("--api-key", type=CLIENT_KEY, help="KEY for that server, or @FILE with it.")
@click.option("--system", help="What the model is told before the conversation.")
@click.option("--temperature", type=click.FloatRange(0, 2), help="0 is greedy.  [default: the model's]")
@click.option("--max-tokens", type=click.IntRange(min=1), help="Longest answer.  [default: what the context leaves]")
def chat(
    model: str | None,
    url: str | None,
    api_key: str | None,
    system: str | None,
    temperature: float | None,
    max_tokens: int | None,
    **values: Any,  # Any: click's values, checked by each option's type
) -> None:
    """Chat with MODEL (default: the bundled small model), or with the server at --url."""
    from .chat_conversation import ChatConversation
    from .chat_session import chat_with
    from .process import run_or_refuse

    given = {"temperature": temperature, "max_tokens": max_tokens}
    conversation = ChatConversation(system, {name: value for name, value in given.items() if value is not None})
    if url is not None:
        if model is not None:
            raise Refusal("give a MODEL to start or the --url of a server that runs, not both")
        run_or_refuse(partial(chat_with, url, api_key, conversation))
        return

    settings = build_settings(model, {**values, "port": 0})
    settings = with_local_models(settings)
    import trio

    from .report import LoadDisplay, report_model, standard_error
    from .serving import run_server

    report = standard_error()
    with LoadDisplay(report) as display:

        def show_model(ready: "Ready", own: "ServeSettings") -> None:
            display.close()
            report_model(report, ready, own.engine, model_name(own))

        async def serve_and_converse() -> None:
            stop = trio.Event()
            async with trio.open_nursery() as nursery:
                urls: list[str] = await nursery.start(
                    partial(run_server, settings, stop, on_progress=display, on_ready=show_model)
                )
                await chat_with(urls[0], api_key, conversation)
                nursery.cancel_scope.cancel()

        run_or_refuse(serve_and_converse)

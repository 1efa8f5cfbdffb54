"""`triolet complete PROMPT`: one answer with its own engine, printed as it comes."""

import secrets
from typing import Any

import click

from .help import SettingsCommand
from .names import with_local_models
from .options import build_settings, prompt_options


@click.command(cls=SettingsCommand)
@click.argument("prompt")
@prompt_options
@click.option("--raw", is_flag=True, help="Continue PROMPT as it stands, without the model's chat template.")
@click.option("--max-tokens", type=click.IntRange(min=1), default=128, show_default=True, help="Longest answer.")
@click.option("--temperature", type=click.FloatRange(0, 2), default=0.0, show_default=True, help="0 is greedy.")
@click.option("--seed", type=click.IntRange(0, 2**64 - 1), help="Draw the same tokens again.  [default: random]")
def complete(
    prompt: str,
    model: str | None,
    raw: bool,
    max_tokens: int,
    temperature: float,
    seed: int | None,
    **values: Any,  # Any: click's values, checked by each option's type
) -> None:
    """Answer PROMPT with MODEL and print the text as it comes. A model without a chat template continues PROMPT.

    \b
    triolet complete "What is 123 + 456?"
    triolet complete --raw "Once upon a time" --model path/to/base-model --temperature 0.8
    """
    settings = build_settings(model, values)
    settings = with_local_models(settings)
    from ..actors.engine import open_engine
    from ..protocol.events import Failed, Token
    from ..protocol.requests import ChatMessage, ChatPrompt, Generate, TextPrompt
    from ..protocol.sampling import Sampling
    from .process import run_or_refuse
    from .report import LoadDisplay, standard_error

    sampling = Sampling(temperature=temperature, seed=secrets.randbits(64) if seed is None else seed)
    failed: Failed | None = None
    with LoadDisplay(standard_error()) as display:

        async def stream() -> None:
            nonlocal failed
            async with open_engine(settings, display) as engine:
                display.close()
                # A chat model has hardly seen bare text: most answers to it are one word without end.
                bare = raw or (await engine.tokenizer_info()).chat_template is None
                question = ChatPrompt(messages=(ChatMessage(role="user", content=prompt),))
                request = Generate(
                    id=engine.gateway.new_id(),
                    model=engine.model_name,
                    prompts=(TextPrompt(text=prompt) if bare else question,),
                    sampling=sampling,
                    max_tokens=max_tokens,
                )
                async for event in engine.stream(request):
                    match event:
                        case Token(text=text):
                            click.echo(text, nl=False)
                        case Failed():
                            failed = event
                        case _:
                            pass
                click.echo()

        run_or_refuse(stream)
    if failed is not None:
        raise click.ClickException(f"{failed.message} ({failed.code})")

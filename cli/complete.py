"""`triolet complete PROMPT`: one completion with its own engine, printed as it comes."""

import secrets
from pathlib import Path
from typing import Any

import click

from ..actors.engine import open_engine
from ..protocol.events import Failed, Token
from ..protocol.requests import ChatMessage, ChatPrompt, Generate, TextPrompt
from ..protocol.sampling import Sampling
from .options import build_settings, prompt_options
from .process import run_or_refuse
from .refusals import refuse_missing_model
from .report import LoadDisplay, standard_error


@click.command()
@click.argument("prompt")
@prompt_options
@click.option("--chat", is_flag=True, help="Put PROMPT as a question, through the model's chat template.")
@click.option("--max-tokens", type=click.IntRange(min=1), default=128, show_default=True, help="Longest answer.")
@click.option("--temperature", type=click.FloatRange(0, 2), default=0.0, show_default=True, help="0 is greedy.")
@click.option("--seed", type=click.IntRange(0, 2**64 - 1), help="Draw the same tokens again.  [default: random]")
def complete(
    prompt: str,
    model: Path | None,
    chat: bool,
    max_tokens: int,
    temperature: float,
    seed: int | None,
    **values: Any,  # Any: click's values, checked by each option's type
) -> None:
    """Continue PROMPT and print the text as it comes."""
    settings = build_settings(model, values)
    refuse_missing_model(settings.engine)
    sampling = Sampling(temperature=temperature, seed=secrets.randbits(64) if seed is None else seed)
    asked = ChatPrompt(messages=(ChatMessage(role="user", content=prompt),)) if chat else TextPrompt(text=prompt)
    failed: Failed | None = None
    with LoadDisplay(standard_error()) as display:

        async def stream() -> None:
            nonlocal failed
            async with open_engine(settings, display) as engine:
                display.close()
                request = Generate(
                    id=engine.gateway.new_id(),
                    model=engine.model_name,
                    prompts=(asked,),
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

"""The rates of this machine: `triolet bench offline` measures and keeps them, plans and the start report read them."""

from functools import cache
from importlib.metadata import version

from ..loadtest.machine import machine
from ..models.plan.calibration import keep_rates, key_of, read_rates
from ..models.plan.speed import Rates, rates_of
from ..protocol.steps import Ready

NOT_MEASURED = Rates(bandwidth=None, operations=None)


@cache
def _here() -> tuple[str, str]:
    about = machine()
    return f"{about.cpu}, {about.cores} cores", version("triolet")


def rates_here(device: str, weights: str, threads: int) -> Rates:
    """Without figures if it was never measured here in this format, with so many threads."""
    return read_rates(key_of(device, weights, threads), *_here()) or NOT_MEASURED


def weights_of(ready: Ready) -> str:
    return ready.dtype if ready.quantize == "none" else ready.quantize


def keep_measured(ready: Ready, threads: int, *, decode: float, prefill: float, context: float, batch: int) -> None:
    """Keep what a run of the engine alone says about this machine; `context`: mean tokens of a sequence."""
    if ready.work is None:
        return
    rates = rates_of(ready.work, decode=decode, prefill=prefill, context=context, batch=batch)
    keep_rates(key_of(ready.device, weights_of(ready), threads), rates, *_here())

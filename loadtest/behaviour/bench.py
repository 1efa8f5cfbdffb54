"""Runs all parts against one server; the part that ends the server comes last."""

from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final

from msgspec import structs

from ..client.client import HttpClient
from ..client.dial import read_url
from ..process import ServerProcess
from .client import Target
from .crowd import duration, middle, probe, probes
from .gauge import find_gauge
from .parts import drain, isolation, leaving, slow_readers, worker_death
from .plan import BehaviourPlan, Subject
from .results import BehaviourReport, NotMeasurable, Result, Tally
from .start import free_port, started, until_ready

_PROBES: Final = 8


async def examine(subject: Subject, plan: BehaviourPlan, log: Path) -> BehaviourReport:
    """All results of one server."""
    with ExitStack() as stack:
        process: ServerProcess | None = None
        url = subject.url
        if subject.command is not None:
            port = free_port()
            process = stack.enter_context(started(subject.command, port, log))
            url = f"http://127.0.0.1:{port}"
        elif subject.pid is not None:
            process = ServerProcess(subject.pid)
        assert url is not None, "neither a command nor a URL"
        key = subject.keys[0] if subject.keys else None
        client = HttpClient(read_url(url, path=""), most_idle=0)
        model = await until_ready(client, key, process)
        target = Target(url=url.rstrip("/"), model=subject.model or model, fields=subject.fields, keys=subject.keys)
        return BehaviourReport(
            name=subject.name,
            url=target.url,
            command=subject.command,
            tally=(tally := Tally()),
            results=await _parts(target, client, process, plan, tally),
        )


async def _parts(
    target: Target, client: HttpClient, process: ServerProcess | None, plan: BehaviourPlan, tally: Tally
) -> dict[str, Result]:
    first = await probe(target, plan.patience * 2)  # the first answer may compile or load something
    if not first.token_times:
        raise RuntimeError(f"the server's first answer ended with {first.end} (status {first.status}): {first.detail}")
    target = await _with_ignored_end(target)
    gauge = await find_gauge(client, target.key())
    alone = await probes(target, _PROBES, plan.patience)
    tally.count(*alone)
    took = middle([duration(stream) for stream in alone])
    long, patience = plan.long_tokens, plan.patience
    results: dict[str, Result] = {}
    results["leaving"] = await _as_many_as_run(
        partial(leaving, target, gauge, took, max_tokens=long, patience=patience), plan.streams
    )
    results["slow readers"] = await slow_readers(
        target, process, took, tally, readers=plan.readers, max_tokens=long, seconds=plan.hold_seconds
    )
    results["isolation"] = await isolation(
        target, alone, tally, flood=plan.flood, max_tokens=plan.flood_tokens, patience=patience
    )
    results["worker death"] = await _as_many_as_run(
        partial(worker_death, target, process, tally, max_tokens=long, patience=patience), plan.streams
    )
    results["drain"] = await _as_many_as_run(
        partial(drain, target, process, tally, max_tokens=plan.drain_tokens, patience=patience), plan.streams
    )
    return results


async def _as_many_as_run(part: Callable[..., Awaitable[Result]], streams: int) -> Result:
    """Repeat with one stream if the server runs fewer at once than requested."""
    result = await part(streams=streams)
    if isinstance(result, NotMeasurable) and result.ran_at_once is not None and streams > 1:
        return await part(streams=1)
    return result


async def _with_ignored_end(target: Target) -> Target:
    """Ask for full-length answers if the server supports `ignore_eos`; others may stop early."""
    longer = structs.replace(target, fields={"ignore_eos": True, **target.fields})
    return longer if (await probe(longer)).token_times else target

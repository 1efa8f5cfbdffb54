"""One whole run: find the model, learn how many tokens a word is, load the server, judge the client, conclude."""

import gc
import re
from collections.abc import Callable
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from random import Random
from typing import BinaryIO, Final

import msgspec
import trio
from msgspec import Struct
from msgspec.structs import replace

from ..client.chunk import listed_models, refusal_text
from ..client.client import HttpClient
from ..client.dial import read_url
from ..client.ending import Fault, outcome_of_status
from ..machine import machine, versions
from .arrivals import Recorded
from .bodies import body_of
from .exchange import LoadExchange, LoadRequest, Transport
from .lag import LagMeter
from .lengths import Fixed
from .openai_stream import OpenAiTransport
from .quantiles import quantile
from .record import Record
from .result import Conditions, Result, make_result, make_series
from .runner import Progress, Runner
from .settings import LoadSettings
from .statistics import Window, tokens_in_windows
from .traces import Trace, read_trace
from .websocket_stream import WebSocketTransport
from .words import TokensPerWord, from_probes, text_of
from .workload import Workload

PROBE_WORDS: Final = (20, 80)
PROBE_SECONDS: Final = 120.0  # a server may load its model at the first request

Watch = Callable[[Runner, LagMeter], None]


class CannotRun(Exception):
    """The server's answers do not allow the run; the message quotes them and names the remedy."""


class FinishedSession(Struct, frozen=True, kw_only=True):
    result: Result
    records: list[Record]


async def run_session(
    settings: LoadSettings, *, name: str, command: str, records_to: Path | None = None, on_begin: Watch | None = None
) -> FinishedSession:
    """`on_begin` is called when the load starts, for a live view. Raises CannotRun."""
    address = read_url(settings.url)
    trace: Trace | None = None
    if isinstance(settings.arrivals, Recorded):
        trace = await trio.to_thread.run_sync(read_trace, Path(settings.arrivals.path))
    meter = LagMeter()
    async with AsyncExitStack() as stack:
        client = HttpClient(address)
        stack.push_async_callback(client.close)
        listed, server = await _identify(client, settings.mix.tenants[0].key, needed=settings.model is None)
        model = settings.model or listed
        sockets = await stack.enter_async_context(trio.open_nursery())
        transport: Transport
        if settings.api == "websocket":
            transport = WebSocketTransport(address, sockets, settings.streams_per_socket)
        else:
            transport = OpenAiTransport(client, settings.api)
        words = await _learn_words(settings, model, transport)
        write: Callable[[Record], None] | None = None
        if records_to is not None:
            records_to.parent.mkdir(parents=True, exist_ok=True)
            write = partial(_write_line, stack.enter_context(records_to.open("wb", buffering=1 << 20)))
        runner = Runner(
            settings,
            Workload(settings, words, trace.requests if trace else ()),
            transport,
            model=model,
            on_record=write,
            recorded_times=[each.time for each in trace.requests] if trace else (),
        )
        sockets.start_soon(meter.watch)
        if on_begin is not None:
            on_begin(runner, meter)
        gc.collect()
        gc.freeze()  # the collector need not scan living objects during the run
        try:
            await runner.run()
        finally:
            gc.unfreeze()
        await transport.close()
        sockets.cancel_scope.cancel()
    client_machine = machine()
    conditions = Conditions(
        name=name,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        command=command,
        model=model,
        server=server,
        versions=versions("trio"),
        machine={"system": client_machine.system, "processor": client_machine.cpu, "cores": str(client_machine.cores)},
        words=words,
    )
    return FinishedSession(
        result=conclude(settings, runner.progress, meter, conditions), records=runner.progress.records
    )


def _write_line(file: BinaryIO, record: Record) -> None:
    file.write(msgspec.json.encode(record) + b"\n")


def conclude(settings: LoadSettings, progress: Progress, meter: LagMeter, conditions: Conditions) -> Result:
    """The result of a finished run. Raises CannotRun if no request was sent.

    If the server is so busy that no client was answered within the warm-up, none asked again: then the warm-up counts.
    """
    unwarmed = 0.0
    if not any(record.phase == "measured" for record in progress.records):
        if not progress.records:
            raise CannotRun("nothing was measured: the load ended before its first request; run longer")
        unwarmed, settings = settings.warmup_seconds, replace(settings, warmup_seconds=0.0)
        progress.records = [replace(record, phase="measured") for record in progress.records]
    records = progress.records
    measured = [record for record in records if record.phase == "measured"]
    window, late = measured_window(settings, progress), None
    if settings.arrivals is not None:
        late = [record.started - record.intended for record in measured if record.turn == 0]
    assert progress.begun is not None
    busy = loaded_window(settings, progress)
    (tokens,) = tokens_in_windows(records, busy, 1)
    client = meter.judge(
        progress.begun + busy.begin, progress.begun + busy.end, tokens=tokens, late_starts=late, waited=progress.waited
    )
    series = make_series(records, meter, progress.begun, max(record.ended for record in records))
    return make_result(records, window, client, series, settings, conditions, unwarmed)


def measured_window(settings: LoadSettings, progress: Progress) -> Window:
    """From the end of warm-up to the last start; if a count ended the run, to the last end."""
    measured = [record for record in progress.records if record.phase == "measured"]
    assert progress.begun is not None
    assert progress.issuing_ended is not None
    begin = settings.warmup_seconds
    if settings.requests is not None:
        begin = max(begin, min(record.intended for record in measured))
        return Window(begin, max(record.ended for record in measured))
    end = progress.issuing_ended - progress.begun
    return Window(begin, max(end, begin))


def loaded_window(settings: LoadSettings, progress: Progress) -> Window:
    """The part of the measured time with full load on the client; it is judged only by this.

    If a count ends the run, the client may be idle while the last answers arrive. Then the part ends at the last start,
    or when 90 % of the requests have ended, if all started together.
    """
    window = measured_window(settings, progress)
    if settings.requests is None:
        return window
    assert progress.begun is not None
    assert progress.issuing_ended is not None
    ended = sorted(record.ended for record in progress.records if record.phase == "measured")
    end = max(progress.issuing_ended - progress.begun, quantile(ended, 0.9))
    return Window(window.begin, min(window.end, end))


async def _identify(client: HttpClient, key: str | None, *, needed: bool) -> tuple[str, str | None]:
    """The first model that the server lists, and the server's name. If not `needed`: "" if it lists none."""
    server: str | None = None
    try:
        with trio.fail_after(PROBE_SECONDS):
            async with client.request("GET", "/models", key=key) as (response, _sent, _reused):
                body = await response.read_all(1 << 20)
                server = response.head.headers.get(b"server", b"").decode(errors="replace") or None
        if response.head.status == 401:
            raise CannotRun("the server asks for a key: add --api-key KEY, or key=… to every --tenant")
        if response.head.status != 200:
            raise Fault(outcome_of_status(response.head.status), f"{response.head.status} {refusal_text(body)}")
        return listed_models(body)[0], server
    except (Fault, trio.TooSlowError, msgspec.MsgspecError, LookupError) as error:
        if needed or (isinstance(error, Fault) and error.outcome == "connect"):
            reason = str(error) or f"no answer within {PROBE_SECONDS:g} s"
            raise CannotRun(
                f"cannot tell the model from /models: {reason}; is the --url right? or add --model"
            ) from error
        return "", server


async def _learn_words(settings: LoadSettings, model: str, transport: Transport) -> TokensPerWord:
    """Two short requests whose usage shows the tokens per word. They also check that the load can run at all."""
    counted: list[tuple[int, int | None]] = []
    plain = replace(settings, output_tokens=Fixed(1))
    for words in PROBE_WORDS:
        text = text_of(words, Random(f"probe {settings.seed} {words}"))
        exchange = LoadExchange(trio.current_time(), trio.current_time())
        ask = LoadRequest(body_of(plain, model, [(text, "")], 1, None), settings.mix.tenants[0].key)
        try:
            with trio.fail_after(PROBE_SECONDS):
                await transport.perform(ask, exchange)
        except Fault as fault:
            raise CannotRun(_remedy(fault, settings)) from fault
        except trio.TooSlowError as error:
            raise CannotRun(f"a first request was not answered within {PROBE_SECONDS:g} s") from error
        counted.append((words, exchange.prompt_tokens))
    return from_probes(counted[0], counted[1])


def _remedy(fault: Fault, settings: LoadSettings) -> str:
    text = f"a first request failed ({fault.outcome}): {fault.detail}"
    if fault.outcome == "client_error" and settings.ignore_eos and re.search("ignore_eos|extra|unknown", fault.detail):
        text += "\nThis server does not know ignore_eos: add --no-ignore-eos"
    return text

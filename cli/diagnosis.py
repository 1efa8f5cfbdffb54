"""What `triolet doctor` makes of a report: a row per step, and in plain words what looks wrong. Pure."""

from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Final, NamedTuple

from ..protocol.errors import REGISTRY
from ..protocol.flight import DoctorReport, FlightEvent, FlightMinute, FlightRecording, Record, StepBack, StepSent
from ..protocol.reports import ServerReport

RECENT: Final = 600.0  # seconds: events that are older are history
OVERDUE: Final = 10.0  # times what steps took lately, and at least 2 s: a step that has not come back
SLOWER: Final = 3.0  # times, both per step and per token: not only other work than before

# Codes of errors that are not the client's own mistake.
_TROUBLES: Final = {str(code) for code, kind in REGISTRY.items() if kind.status == 429 or kind.status >= 500}
_REMEDIES: Final = {
    "blocks": "KV blocks: {owned} of {total} are in use. More --kv-cache-memory, or shorter prompts and answers",
    "rows": "a row of the batch: more --max-running, if memory allows",
    "key": "KV blocks, since others of their API key hold all that it may have: a higher kv_tokens in its table",
    "budget": "a share of a step's tokens, as prompts are being read: more --max-step-tokens",
    "adapter": "their LoRA adapter: more --max-loras",
    "grammar": "the grammar of their answer, which the worker builds",
    "share": "the turn of their API key, whose other requests take its share",
    "worker": "a worker process",
    "suspect": "a step of their own, as a worker died computing them",
}  # what choices wait for, by the planner's reason


class StepRow(NamedTuple):
    planned: StepSent
    answered: StepBack | None  # not yet


def step_rows(records: Sequence[Record]) -> list[StepRow]:
    answers = {record.step: record for record in records if isinstance(record, StepBack)}
    return [StepRow(record, answers.get(record.step)) for record in records if isinstance(record, StepSent)]


def problems(report: DoctorReport) -> list[str]:
    """A sentence each, the worst first; nothing if all is well."""
    found: list[str] = []
    if not report.health.ready and report.health.status != "recorded":
        found.append(f"The server is {report.health.status}: {report.health.reason}.")
    for name, recording in report.recordings.items():
        model = f"{name}: " if len(report.recordings) > 1 else ""
        figures = report.reports.get(name)
        killed = report.health.status == "recorded" and not _stopped(recording)
        ending = ["The recording ends without a stop: the process was killed, or runs still."] if killed else []
        several = [*ending, *_of_recording(recording), *(_of_queues(figures) if figures is not None else ())]
        found += [model + sentence for sentence in several]
    ledger = report.ledger
    if ledger is not None and not ledger.requests and ledger.kv_blocks.owned:
        found.append(
            f"{ledger.kv_blocks.owned} KV blocks are owned though no request lives: a defect, please report it."
        )
    return found


def _stopped(recording: FlightRecording) -> bool:
    return any(isinstance(record, FlightEvent) and record.kind == "stopped" for record in recording.records)


def _of_recording(recording: FlightRecording) -> Iterator[str]:
    records, now = recording.records, recording.now
    events = [record for record in records if isinstance(record, FlightEvent) and now - record.at < RECENT]
    losses = [event.text for event in events if event.kind == "worker" and event.text.startswith("restarting")]
    if losses:
        why = losses[-1].removeprefix("restarting: ").removesuffix("; another one is being started")
        yield f"The worker was lost {_times(len(losses))} in the last {RECENT / 60:.0f} minutes, last: {why}."
    for event in events:
        if event.kind == "convicted":
            yield f"The {event.text}: its crash report is in the data folder."
        elif event.kind == "stopped" and event.text != "in order":
            yield f"The engine ended: {event.text}."
    if (stuck := _standstill(events)) is not None:
        yield f"The event loop {stuck}: `triolet doctor --pid PID` shows where it is."
    refused = Counter[str]()
    for told in (part for event in events if event.kind == "refused" for part in event.text.split(", ")):
        code, _, count = told.rpartition(" ")
        if code in _TROUBLES and count.isdecimal():  # a text that is too long is cut
            refused[code] += int(count)
    if refused:
        what = ", ".join(f"{count} with {code}" for code, count in refused.most_common())
        yield f"Requests were refused or failed in the last {RECENT / 60:.0f} minutes: {what}."
    workers = [record.at for record in records if isinstance(record, FlightEvent) and record.kind == "worker"]
    yield from _of_steps(step_rows(records), now, max(workers, default=0.0))
    yield from _of_minutes([record for record in records if isinstance(record, FlightMinute)])


def _standstill(events: list[FlightEvent]) -> str | None:
    turns = [event for event in events if event.kind == "loop"]
    if turns and turns[-1].text == "stuck":
        return "is stuck"
    count = sum(event.text == "stuck" for event in turns)
    return f"was stuck {_times(count)}, and turns again" if count else None


def _of_steps(rows: list[StepRow], now: float, since: float) -> Iterator[str]:
    """`since`: when the present worker came; what was in flight then is lost."""
    answered = [row.answered for row in rows if row.answered is not None]
    usual = median(answer.duration for answer in answered) if answered else 0.2
    open_steps = (row.planned for row in rows if row.answered is None and row.planned.at > since)
    if (oldest := next(open_steps, None)) is not None and (waits := now - oldest.at) > max(2.0, OVERDUE * usual):
        size = f"{_count(oldest.sequences, 'sequence')}, {_count(oldest.tokens, 'token')}"
        yield f"Step {oldest.step} ({size}) was sent {waits:.1f} s ago and is not back; steps take {usual:.3f} s."
    if (sent_back := sum(row.planned.preempted for row in rows)) > len(rows) / 10:
        yield f"{sent_back} preemptions in {len(rows)} steps: KV blocks are short, and answers are computed again."
    outside, inside = sum(answer.link for answer in answered), sum(answer.duration for answer in answered)
    if inside > 1.0 and outside > inside:
        yield f"Steps spend {outside:.1f} s outside the worker and {inside:.1f} s in it: the front process is too busy."


def _of_minutes(minutes: list[FlightMinute]) -> Iterator[str]:
    if len(minutes) < 2:
        return
    *before, lately = minutes
    step = lately.seconds / lately.steps / median(minute.seconds / minute.steps for minute in before)
    token = _per_token(lately) / median(map(_per_token, before))
    if min(step, token) > SLOWER:
        ago = f"in the {(lately.at - before[0].at) / 60:.0f} minutes before"
        yield f"A step takes {step:.0f} times as long as {ago}, a token {token:.0f} times: is the machine busy?"


def _per_token(minute: FlightMinute) -> float:
    return minute.seconds / max(1, minute.tokens)


def _of_queues(figures: ServerReport) -> Iterator[str]:
    scheduler, blocks = figures.scheduler, figures.scheduler.blocks
    behind = scheduler.waiting_by_reason.get("order", 0)
    for reason, count in scheduler.waiting_by_reason.items():
        if remedy := _REMEDIES.get(reason):
            what, _, hint = remedy.format(owned=blocks.owned, total=blocks.total).partition(": ")
            need = f"{count} need{'s' if count == 1 else ''} {what}" + (f", {behind} are behind" if behind else "")
            yield f"Of {_count(scheduler.waiting, 'waiting choice')} {need}{': ' if hint else ''}{hint}."
    if scheduler.parked:
        yield f"{_count(scheduler.parked, 'choice')} of answers wait for their readers, which are slow."


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _count(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"

"""What the flight recorder keeps of a planned step: a `StepSent` of protocol/flight.py, as a tuple."""

from ...protocol.steps import Step
from ..flight import StepRecord
from .step_plan import StepPlan


def step_record(step: Step, plan: StepPlan, now: float) -> StepRecord:
    rows, prefill, waiting = len(step.chunks), plan.prefill_tokens, len(plan.queues.waiting)
    if not prefill and not waiting:  # nearly always, and it must cost nothing
        return "sent", step.step, now, rows, rows
    blocked, need, free = next(iter(plan.blocked.values()), "") if waiting else "", 0, 0
    if plan.shortage is not None:
        _, blocked, need, free = plan.shortage
    tokens = sum([chunk.count for chunk in step.chunks]) if prefill else rows
    others = prefill, len(step.new), plan.preempted, waiting, blocked, need, free
    return "sent", step.step, now, rows, tokens, *others

"""The steps that are timed, as a stepper gets them: real ones would refuse none of these, and tell nothing of them."""

from typing import Any, cast

from triolet.models.plan.roofline import StepLoad
from triolet.models.step_times import WARM_UP, StepTimer
from triolet.models.stepper import PendingStep, Stepper
from triolet.protocol.steps import MemoryPlan, Ready, Step, StepDone

BLOCK = 4
MEMORY = MemoryPlan(
    weights_bytes=1, workspace_bytes=1, kv_bytes=1, num_blocks=20, block_size=BLOCK, sequences_at_full_length=1.0
)
READY = Ready(
    model="m", architecture="a", parameters=1, device="cpu", dtype="float32", quantize="none", context_length=32,
    vocab_size=50, eos_token_ids=(), max_step_tokens=6, max_running=4, memory=MEMORY, sampling_defaults={},
    versions={}, pid=1,
)  # fmt: skip
PROMPT, ONE, THREE = (StepLoad(sequences=s, tokens=t, context=c) for s, t, c in ((1, 5, 0), (1, 1, 8), (3, 1, 8)))


class _Recorder:
    """Keeps the steps. To hear it, each took so many seconds."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.steps: list[Step] = []
        self._seconds = seconds

    def begin_step(self, step: Step) -> PendingStep:
        self.steps.append(step)
        return PendingStep(lambda: StepDone(step=step.step, rows=(), duration=self._seconds, model_duration=0.0))


def _timer(recorder: Any, *loads: StepLoad, rounds: int = 3) -> StepTimer:
    return StepTimer(cast("Stepper", recorder), READY, loads, rounds=rounds)


def test_sequences_decode_on_blocks_of_their_own_that_hold_the_context() -> None:
    recorder = _Recorder()
    assert len(_timer(recorder, ONE, THREE).times(THREE)) == 3
    filling, decoding = recorder.steps[: -3 - WARM_UP], recorder.steps[-3 - WARM_UP :]
    assert [(chunk.start, chunk.count) for step in filling[:2] for chunk in step.chunks] == [(0, 6), (6, 2)]
    written = {copy.target for step in filling for copy in step.copies}
    tables = [chunk.blocks for chunk in decoding[0].chunks]
    assert len({block for table in tables for block in table}) == sum(map(len, tables)) <= MEMORY.num_blocks
    assert written == {block for table in tables[1:] for block in table[: 8 // BLOCK]}
    assert filling[0].chunks[0].blocks == tables[0]
    assert all(copy.source in tables[0][: 8 // BLOCK] for step in filling for copy in step.copies)
    starts = [[chunk.start for chunk in step.chunks] for step in decoding]
    assert starts == [[8 + number] * 3 for number in range(3 + WARM_UP)]
    assert not any(step.new or step.dropped or step.copies for step in decoding[1:])  # as a server's do


def test_every_sequence_that_came_is_dropped_by_the_next_ones() -> None:
    recorder = _Recorder()
    timer = _timer(recorder, ONE, THREE, PROMPT)
    for load in timer.loads:
        timer.times(load)
    live: set[int] = set()
    for step in recorder.steps:
        live = (live - set(step.dropped)) | {record.sequence for record in step.new}
        assert {chunk.sequence for chunk in step.chunks} <= live
        assert len(live) <= 3


def test_a_prompt_is_a_new_sequence_each_time_and_spoils_the_context() -> None:
    recorder = _Recorder()
    timer = _timer(recorder, ONE, PROMPT)
    starts: list[list[int]] = []
    for load in (ONE, ONE, PROMPT, ONE):
        recorder.steps.clear()
        assert len(timer.times(load)) == 3
        starts.append([step.chunks[0].start for step in recorder.steps])
    computing, decoding = [0, 6], [8, 9, 10, 11, 12]
    assert starts == [computing + decoding, decoding, [0] * 4, computing + decoding]  # one prompt is not counted


def test_slow_steps_are_measured_three_times_at_least() -> None:
    assert len(_timer(_Recorder(seconds=9.0), PROMPT, rounds=20).times(PROMPT)) == 3
    assert len(_timer(_Recorder(seconds=0.5), PROMPT, rounds=20).times(PROMPT)) == 6
    assert len(_timer(_Recorder(seconds=9.0), PROMPT, rounds=1).times(PROMPT)) == 1


def test_what_does_not_fit_is_left_out() -> None:
    long, many, wide = (StepLoad(sequences=s, tokens=t, context=8) for s, t in ((1, 7), (5, 1), (4, 1)))
    assert _timer(_Recorder(), long, many, ONE).loads == (ONE,)  # 7 tokens in one step; 5 sequences
    assert _timer(_Recorder(), wide, ONE, rounds=3).loads == (wide, ONE)  # 4 × 4 blocks
    assert _timer(_Recorder(), wide, ONE, rounds=12).loads == (ONE,)  # 4 × 6 blocks
    assert _timer(_Recorder(), ONE, PROMPT, rounds=23).loads == (PROMPT,)  # 8 + 2 + 23 tokens

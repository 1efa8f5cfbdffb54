"""Makers of requests and of a worker for the scheduler's tests, short enough to read a test's numbers at once."""

from typing import Any

from triolet.actors.scheduler.state import SchedulerState
from triolet.protocol.messages import Admit, ChoiceTokens, StepTokens, ToDetokenizer, WorkerReady
from triolet.protocol.requests import Generate, TokenPrompt
from triolet.protocol.sampling import Sampling
from triolet.protocol.steps import MemoryPlan, Ready, Row, Step, StepDone

EOS = 0


def admit(
    id: str,
    *prompts: tuple[int, ...],
    max_tokens: int = 100,
    stops: tuple[int, ...] = (EOS,),
    sampling: Sampling | None = None,
    **fields: Any,  # whatever Generate takes
) -> Admit:
    generate = Generate(
        id=id,
        model="m",
        prompts=tuple(TokenPrompt(token_ids=prompt) for prompt in prompts),
        sampling=sampling or Sampling(),
        **fields,
    )
    return Admit(
        request=generate,
        prompts=prompts,
        max_tokens=(max_tokens,) * len(prompts),
        stop_token_ids=stops,
        eos_token_ids=(EOS,),
    )


def choices_of(message: ToDetokenizer) -> list[ChoiceTokens]:
    """What a message says of choices, one by one."""
    return list(message.choices()) if isinstance(message, StepTokens) else []


def text(length: int, first: int = 1) -> tuple[int, ...]:
    """A prompt; another `first`, another prefix."""
    return tuple(range(first, first + length))


def flood(count: int, length: int = 3, max_tokens: int = 1000, tenant: str = "a", **fields: Any) -> list[Admit]:
    """Requests of one tenant with nothing in common."""
    return [
        admit(f"{tenant}{number}", text(length, 1000 * number), max_tokens=max_tokens, tenant=tenant, **fields)
        for number in range(count)
    ]


def newcomer(length: int = 3, id: str = "new", **fields: Any) -> Admit:
    defaults: dict[str, Any] = {"arrival_time": 9.0, "max_tokens": 3}
    return admit(id, text(length, 500_000), tenant="b", **(defaults | fields))


def ready(
    *, num_blocks: int = 64, max_step_tokens: int = 256, max_running: int = 8, context_length: int = 2048
) -> WorkerReady:
    plan = MemoryPlan(
        weights_bytes=0,
        workspace_bytes=0,
        kv_bytes=0,
        num_blocks=num_blocks,
        block_size=64,
        sequences_at_full_length=1.0,
    )
    return WorkerReady(
        ready=Ready(
            model="m",
            architecture="fake",
            parameters=0,
            device="cpu",
            dtype="float32",
            quantize="none",
            context_length=context_length,
            vocab_size=10_000,
            eos_token_ids=(EOS,),
            max_step_tokens=max_step_tokens,
            max_running=max_running,
            memory=plan,
            sampling_defaults={},
            versions={},
            pid=1,
        )
    )


def computed(step: Step) -> dict[int, int]:
    return {chunk.sequence: chunk.count for chunk in step.chunks}


def done(step: Step, token: int = 5, count: int = 1, **tokens: int) -> StepDone:
    """The answer to a step: every sampled row gives `count` times `token`, or what `s<sequence id>` names."""
    rows = (
        Row(sequence=chunk.sequence, tokens=(tokens.get(f"s{chunk.sequence}", token),) * count if chunk.sample else ())
        for chunk in step.chunks
    )
    return StepDone(step=step.step, rows=tuple(rows), duration=0.01, model_duration=0.005)


def new_state(**options: Any) -> SchedulerState:  # those of SchedulerState
    defaults: dict[str, Any] = {"secret": b"test", "max_losses": 3}
    return SchedulerState(**(defaults | options))


def whereabouts(state: SchedulerState, id: str) -> dict[int, str]:
    """Where each unfinished choice of a request is, or the predicate that keeps it waiting."""
    live = state.table.requests.get(id)
    choices = live.choices.values() if live else ()
    return {one.index: state.waits.obstacle(one) if one.place == "waiting" else one.place for one in choices}


class Bench:
    """A scheduler with a hand on its clock: `step` plans and answers one step."""

    def __init__(self, *, worker: WorkerReady | None = None, **options: Any) -> None:  # those of SchedulerState
        self.state = new_state(**{"max_steps_in_flight": 1, **options})
        self.now = 0.0
        self.state.handle(worker or ready(), self.now)

    def send(self, *messages: Any) -> None:  # ToScheduler
        for message in messages:
            self.state.handle(message, self.now)

    def plan(self) -> Step:
        step = self.state.plan()
        assert step is not None
        return step

    def step(self, token: int = 5, **tokens: int) -> Step:
        step = self.plan()
        self.send(done(step, token, **tokens))
        return step

    def whereabouts(self, id: str) -> dict[int, str]:
        return whereabouts(self.state, id)

    def texts(self) -> list[ToDetokenizer]:
        return self.state.take_texts()

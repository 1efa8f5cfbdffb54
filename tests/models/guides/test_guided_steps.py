"""Guided sequences through the real scheduler and the real steppers, two steps in flight, on CPU and rehearsed GPU."""

import queue
import re
from collections.abc import Callable

import pytest
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from triolet.actors.scheduler.state import SchedulerState
from triolet.models.gpu.stepper import GpuStepper
from triolet.models.guides.grammars import GrammarStore
from triolet.models.stepper import PendingStep, Stepper
from triolet.protocol.messages import Admit, StepTokens, WorkerReady
from triolet.protocol.requests import Generate, TokenPrompt
from triolet.protocol.sampling import Sampling
from triolet.protocol.steps import GrammarFailed, GrammarReady, MemoryPlan, PrepareGrammar, Ready, StepDone

from ..gpu.gpu_house import SPEC, make_cpu_stepper, make_gpu_model

EOS = 0
PATTERN = "(ab|cd)[e-h] so,? (red|tan)!"
GRAMMAR = LLMatcher.grammar_from_regex(PATTERN)


class Letters:
    """A tokenizer of single characters: a token's id is its code."""

    eos_token_id, bos_token_id, special_token_ids = EOS, None, (EOS,)
    tokens = tuple(bytes([code]) for code in range(SPEC.vocab_size))

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


def store(*, jump_ahead: bool) -> GrammarStore:
    tokenizer = LLTokenizer(TokenizerWrapper(Letters()), n_vocab=SPEC.vocab_size)
    return GrammarStore(tokenizer, (EOS,), SPEC.vocab_size, jump_ahead=jump_ahead)


def on_cpu() -> Callable[[bool], Stepper]:
    return lambda jump_ahead: make_cpu_stepper(store(jump_ahead=jump_ahead))


def on_gpu() -> Callable[[bool], Stepper]:
    model = make_gpu_model()  # one for all: its launches are interpreted, and rehearsed first
    return lambda jump_ahead: GpuStepper(model, store(jump_ahead=jump_ahead))


def ready() -> Ready:
    memory = MemoryPlan(
        weights_bytes=0, workspace_bytes=0, kv_bytes=0, num_blocks=12, block_size=64, sequences_at_full_length=4.0
    )  # fmt: skip
    return Ready(
        model="m", architecture="fake", parameters=0, device="gpu", dtype="bfloat16", quantize="none",
        context_length=SPEC.max_position, vocab_size=SPEC.vocab_size, eos_token_ids=(EOS,), max_step_tokens=12,
        max_running=3, memory=memory, sampling_defaults={}, versions={}, pid=1,
    )  # fmt: skip


def admit(
    id: str, prompt: str, max_tokens: int, *, grammar: str = "", seed: int | None = None, penalty: float = 0.0
) -> Admit:
    request = Generate(
        id=id,
        model="m",
        prompts=(TokenPrompt(token_ids=tuple(prompt.encode())),),
        sampling=Sampling(temperature=0.0 if seed is None else 1.0, seed=seed or 0, frequency_penalty=penalty),
        grammar=grammar,
        determinism="strict",
    )
    stops = (EOS,) if grammar else ()
    return Admit(
        request=request,
        prompts=(tuple(prompt.encode()),),
        max_tokens=(max_tokens,),
        stop_token_ids=stops,
        eos_token_ids=(EOS,),
    )


class Engine:
    """The scheduler's state and a stepper, without actors."""

    def __init__(self, stepper: Stepper) -> None:
        self.stepper = stepper
        self.state = SchedulerState(secret=b"test", max_losses=3)
        self.state.handle(WorkerReady(ready=ready()), 0.0)
        self.pending: list[PendingStep] = []
        self.texts: dict[str, str] = {}
        self.steps: list[StepDone] = []

    def run(self, *admits: Admit) -> dict[str, str]:
        """All requests to their ends; what each wrote."""
        for one in admits:
            self.state.handle(one, 0.0)
            self.texts[one.request.id] = ""
        for order in self.state.take_preparations():
            assert isinstance(order, PrepareGrammar)
            answers: queue.SimpleQueue[GrammarReady | GrammarFailed] = queue.SimpleQueue()
            self.stepper.prepare_grammar(order, answers.put)
            self.state.handle(answers.get(), 0.0)
        while self.state.table.requests:
            while step := self.state.plan():
                self.pending.append(self.stepper.begin_step(step))
            self.steps.append(self.pending.pop(0).wait())
            self.state.handle(self.steps[-1], 0.0)
            for message in self.state.take_texts():
                for choice in message.choices() if isinstance(message, StepTokens) else ():
                    assert not choice.error, choice
                    self.texts[choice.id] += bytes(choice.tokens).decode()
        while self.pending:
            self.pending.pop(0).wait()
        assert self.state.statistics().blocks.owned == 0
        self.stepper.close()
        return self.texts


@pytest.mark.parametrize("place", [on_cpu, on_gpu])
def test_guided_and_free_sequences_share_steps(place: Callable[[], Callable[[bool], Stepper]]) -> None:
    """Guided ones are the same with and without jumps, in fewer steps with them; free ones do not notice.

    Forced tokens count for penalties, and later tokens are drawn with the random numbers of their own places.
    """
    free = [admit("free", "Hello", 8, seed=5)]
    guided = [
        admit("greedy", "An", 40, grammar=GRAMMAR),
        admit("drawn", "So:", 40, grammar=GRAMMAR, seed=3, penalty=2.0),
    ]
    stepper = place()
    alone = Engine(stepper(True)).run(*free)
    steps: list[int] = []
    found: list[dict[str, str]] = []
    for jump_ahead in (True, False):
        engine = Engine(stepper(jump_ahead))
        texts = engine.run(*free, *guided)
        found.append(texts)
        assert texts["free"] == alone["free"]
        for id in ("greedy", "drawn"):
            assert re.fullmatch(PATTERN, texts[id])
        rows = [row for done in engine.steps for row in done.rows if row.sequence > 1]
        steps.append(sum(bool(row.tokens) for row in rows))
        assert any(row.computed is not None for row in rows) == jump_ahead
    assert found[0] == found[1]
    assert steps[0] < 0.6 * steps[1]

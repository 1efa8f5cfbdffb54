"""The whole engine against transformers: greedy tokens are equal over chunked prompts, prefix hits and preemptions.

The engine runs inline on the random checkpoints of the parity tests; log probabilities carry the token ids out.
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest
import trio
from tokenizers import Tokenizer, models

from triolet.actors.engine import Engine, run_engine
from triolet.actors.gateway.outbox import Outbox
from triolet.actors.scheduler.sequence import WORTH_COPYING
from triolet.models.checkpoint.families.families import load_spec
from triolet.models.checkpoint.spec import ModelSpec
from triolet.models.cpu.memory import CpuSizes, memory_needs
from triolet.protocol.events import Failed, Finished, StreamEvent, Token, TokenLogprob
from triolet.protocol.requests import BeamRule, Determinism, Generate, TokenPrompt
from triolet.protocol.sampling import Sampling
from triolet.protocol.settings import EngineSettings, LimitSettings, ServeSettings

from .parity_cases import NEW_TOKENS, TOLERANCE, ParityCase, make_case

STEP_TOKENS = 40  # prompts of 150, 101 and 64 tokens are cut, in places that are no multiples of a block
BEAM_TOKENS = 24
MAX_MODEL_LEN = 256  # 4 blocks


@asynccontextmanager
async def engine_with(case: ParityCase, *, blocks: int, outbox_tokens: int = 256) -> AsyncGenerator[Engine]:
    """An engine whose KV pool has so many blocks, and whose streams run so far ahead of their readers."""
    spec = load_spec(case.folder)
    write_tokenizer(case.folder, spec)
    sizes = CpuSizes(
        weight_format="float32", max_step_tokens=STEP_TOKENS, max_logit_rows=STEP_TOKENS, max_model_len=MAX_MODEL_LEN
    )
    block_bytes = memory_needs(spec, sizes).kv_block_bytes
    settings = EngineSettings(
        model=str(case.folder),
        dtype="float32",
        threads=1,
        max_model_len=MAX_MODEL_LEN,
        max_step_tokens=STEP_TOKENS,
        kv_cache_memory=blocks * block_bytes,
    )
    async with trio.open_nursery() as nursery:
        serve = ServeSettings(engine=settings, limits=LimitSettings(outbox_tokens=outbox_tokens), inline=True)
        engine: Engine = await nursery.start(partial(run_engine, serve))
        assert engine.ready is not None
        assert engine.ready.memory.num_blocks == blocks
        yield engine
        nursery.cancel_scope.cancel()


def write_tokenizer(folder: Path, spec: ModelSpec) -> None:
    """One made-up word per token: the texts do not matter here."""
    words = {f"word{index}": index for index in range(spec.vocab_size)}
    Tokenizer(models.WordLevel(words, unk_token="word0")).save(str(folder / "tokenizer.json"))


def submit(
    engine: Engine, prompt: list[int], max_tokens: int = NEW_TOKENS, **more: Any
) -> Outbox:  # Any: as `Generate` has it
    """Ask for the greedy tokens of a prompt. `more`: of `Generate`."""
    return engine.gateway.submit(
        Generate(
            id=engine.gateway.new_id(),
            model=engine.model_name,
            prompts=(TokenPrompt(token_ids=tuple(prompt)),),
            sampling=Sampling(temperature=0.0, logprobs=0),
            max_tokens=max_tokens,
            ignore_eos=True,
            **more,
        )
    )


async def read(outbox: Outbox) -> tuple[list[int], int]:
    """The tokens, and how many of the prompt's were found in the prefix cache."""
    events: list[StreamEvent] = []
    while True:
        try:
            events += await outbox.drain()
        except trio.EndOfChannel:
            break
    assert not any(isinstance(event, Failed) for event in events), events[-1]
    assert isinstance(events[-1], Finished)
    scores = [score for event in events if isinstance(event, Token) for score in event.logprobs]
    return [score.token_id for score in scores], events[-1].usage.cached_tokens


async def read_choices(outbox: Outbox) -> dict[int, list[int]]:
    """The tokens of each choice."""
    return {index: [one.token_id for one in scores] for index, scores in (await read_scores(outbox)).items()}


async def read_scores(outbox: Outbox) -> dict[int, list[TokenLogprob]]:
    """The tokens of each choice with their log probabilities."""
    tokens: dict[int, list[TokenLogprob]] = {}
    with suppress(trio.EndOfChannel):
        while True:
            for event in await outbox.drain():
                assert not isinstance(event, Failed), event
                if isinstance(event, Token):
                    tokens.setdefault(event.index, []).extend(event.logprobs)
    return tokens


async def generate_all(engine: Engine, prompts: list[list[int]], max_tokens: int = NEW_TOKENS) -> list[list[int]]:
    """All at once, in this order. Outboxes hold an answer whole, so nobody need read while others write."""
    outboxes = [submit(engine, prompt, max_tokens) for prompt in prompts]
    return [(await read(outbox))[0] for outbox in outboxes]


async def test_chunked_together_and_from_the_prefix_cache(drawn_case: ParityCase) -> None:
    where = f"{drawn_case.variant}, seed {drawn_case.seed}"
    async with engine_with(drawn_case, blocks=40) as engine:
        assert await generate_all(engine, drawn_case.prompts) == drawn_case.continuations, where
        for index, prompt in enumerate(drawn_case.prompts):
            again, cached = await read(submit(engine, prompt))
            assert again == drawn_case.continuations[index], where
            # Whole blocks are found again, but for the last token, whose logits are needed.
            assert cached == (len(prompt) - 1) // 64 * 64, where
        # A conversation goes on: the prompt of the next turn is the last one and its answer.
        turn = drawn_case.prompts[0] + drawn_case.continuations[0][:50]
        rest, cached = await read(submit(engine, turn, NEW_TOKENS - 50))
        assert cached == 192, where
        assert rest == drawn_case.continuations[0][50:], where
        assert engine.scheduler_statistics().totals.preemptions == 0


@pytest.mark.parametrize("determinism", ["default", "strict"])
async def test_choices_that_copy_their_prompts_last_block(drawn_case: ParityCase, determinism: Determinism) -> None:
    """Three choices of a request draw what three requests with their seeds draw, each of which computes the prompt."""
    where = f"{drawn_case.variant}, seed {drawn_case.seed}"
    async with engine_with(drawn_case, blocks=40) as engine:

        async def ask(prompt: list[int], salt: str, *, n: int = 1, seed: int) -> dict[int, list[int]]:
            outbox = engine.gateway.submit(
                Generate(
                    id=engine.gateway.new_id(),
                    model=engine.model_name,
                    prompts=(TokenPrompt(token_ids=tuple(prompt)),),
                    sampling=Sampling(temperature=1.0, seed=seed % 2**64, logprobs=0),
                    n=n,
                    max_tokens=20,
                    ignore_eos=True,
                    cache_salt=salt,  # so that nothing of the prompt is found in the prefix cache
                    determinism=determinism,
                )
            )
            return await read_choices(outbox)

        seed = 2**64 - 2
        for prompt in (prompt for prompt in drawn_case.prompts if len(prompt) > WORTH_COPYING):
            alone = {number: (await ask(prompt, str(number), seed=seed + number))[0] for number in range(3)}
            before = engine.scheduler_statistics().totals.prefill_tokens
            assert await ask(prompt, "together", n=3, seed=seed) == alone, where
            assert engine.scheduler_statistics().totals.prefill_tokens - before == len(prompt) + 2, where


async def test_preempted_by_a_small_pool(drawn_case: ParityCase) -> None:
    """Two long sequences whose readers pause are parked; those behind them need their blocks, so they lose them and are
    computed again when their readers come back."""
    where = f"{drawn_case.variant}, seed {drawn_case.seed}"
    order = [0, 3, 2, 1]
    async with engine_with(drawn_case, blocks=6, outbox_tokens=20) as engine:
        statistics = engine.scheduler_statistics
        outboxes = {index: submit(engine, drawn_case.prompts[index]) for index in (0, 3)}
        with trio.fail_after(60):
            while statistics().parked < 2:  # noqa: ASYNC110 - the scheduler gives no event
                await trio.sleep(0.002)
        outboxes |= {index: submit(engine, drawn_case.prompts[index]) for index in (2, 1)}
        for index in reversed(order):
            assert await read(outboxes[index]) == (drawn_case.continuations[index], 0), where
        assert statistics().totals.preemptions > 0, where


@pytest.fixture(scope="module")
def beam_case(tmp_path_factory: pytest.TempPathFactory) -> ParityCase:
    """Always the same one: of many beams some are so near to each other that rounding decides between them."""
    return make_case("qwen3-wide-heads", 1, tmp_path_factory.mktemp("beams"))


@pytest.mark.parametrize(("width", "length_penalty", "early"), [(4, 1.0, False), (3, 0.0, True), (10, 2.0, "never")])
async def test_beam_search_finds_what_transformers_finds(
    beam_case: ParityCase, width: int, length_penalty: float, early: bool | Literal["never"]
) -> None:
    """The same answers with the same scores, in a pool that is too small for ten beams at once."""
    import torch
    import transformers

    loaded = transformers.AutoModelForCausalLM.from_pretrained(beam_case.folder, dtype=torch.float32)
    model: Any = loaded  # its annotations do not fit each other
    stops = tuple(range(0, model.config.vocab_size, model.config.vocab_size // 4))
    async with engine_with(beam_case, blocks=8) as engine:
        for prompt in beam_case.prompts:
            found = model.generate(
                torch.tensor([prompt]),
                attention_mask=torch.ones(1, len(prompt), dtype=torch.long),  # the padding's id may be in the prompt
                num_beams=width,
                num_return_sequences=width,
                max_new_tokens=BEAM_TOKENS,
                length_penalty=length_penalty,
                early_stopping=early,
                do_sample=False,
                eos_token_id=list(stops),
                pad_token_id=model.config.vocab_size - 1,
                output_scores=True,
                return_dict_in_generate=True,
            )
            rule = BeamRule(answers=width, length_penalty=length_penalty, early_stopping=early)
            outbox = submit(engine, prompt, BEAM_TOKENS, n=width, beams=rule, stop_token_ids=stops)
            answers = [scores for _, scores in sorted((await read_scores(outbox)).items())]
            expected = [ended(row[len(prompt) :].tolist(), stops) for row in found.sequences]
            assert [[one.token_id for one in scores] for scores in answers] == expected
            sums = [sum(one.logprob or 0.0 for one in scores) / len(scores) ** length_penalty for scores in answers]
            assert sums == pytest.approx(found.sequences_scores.tolist(), abs=BEAM_TOKENS * TOLERANCE)
        assert engine.scheduler_statistics().blocks.owned == 0


def ended(tokens: list[int], stops: tuple[int, ...]) -> list[int]:
    """Without the padding behind the stop token."""
    end = next((place for place, token in enumerate(tokens) if token in stops), len(tokens))
    return tokens[: end + 1]

"""What a step reads and computes, beside numbers worked out by hand, and which ceiling decides."""

from msgspec.structs import replace

from triolet.models.checkpoint.spec import LayerSpec, ModelSpec
from triolet.models.plan.roofline import Ceilings, MemoryLevel, StepLoad, StepWork, Unit, roof_of, step_work
from triolet.protocol.steps import TokenWork

# Two layers of two heads of 4; one looks at the last 3 tokens only. The cache: 2 layers × (key, value) × 4 × 2 bytes.
SPEC = ModelSpec(
    family="tiny", vocab_size=10, hidden_size=8, layers=(LayerSpec(), LayerSpec(window=3)), num_heads=2,
    num_kv_heads=1, head_dim=4, mlp_size=16, norm_eps=1e-5, max_position=64, tied_embeddings=True,
)  # fmt: skip
WORK = TokenWork(weight_bytes=1000, all_weight_bytes=1000, kv_bytes=32, operations=1160, prompt_operations=1000)


def _level(name: str, size: int, rate: float) -> MemoryLevel:
    return MemoryLevel(name=name, read_bytes=size, one_thread=rate / 2, all_threads=rate)


def _unit(name: str, rate: float) -> Unit:
    return Unit(format=name, instruction="", one_thread=rate / 2, all_threads=rate)


CEILINGS = Ceilings(
    threads=2,
    levels=(_level("L3", 2000, 1000.0), _level("memory", 10**6, 100.0)),
    units=(_unit("int8", 4000.0), _unit("bfloat16", 2000.0)),
)


def test_a_decoding_step_reads_weights_once_and_each_sequences_cache() -> None:
    found = step_work(SPEC, WORK, StepLoad(sequences=2, tokens=1, context=5))
    assert found.bytes == 1000 + 2 * 16 * (6 + 3)  # a layer caches 16 bytes a token; its own token is written
    assert found.products == 2 * 1160
    assert found.attention == 2 * (2 * 2 * 8) * (6 + 3)  # multiply and add, heads, a key and a value; keys seen
    assert found.operations == found.products + found.attention


def test_a_prompt_needs_logits_once_and_sees_what_is_before_each_token() -> None:
    found = step_work(SPEC, WORK, StepLoad(sequences=1, tokens=4, context=0))
    assert found.bytes == 1000 + 16 * (4 + 4)
    assert found.products == 4 * 1000 + 160
    assert found.attention == (2 * 2 * 8) * ((1 + 2 + 3 + 4) + (1 + 2 + 3 + 3))


def test_a_mixture_reads_the_experts_of_each_token() -> None:
    mixture = replace(WORK, all_weight_bytes=3500)
    read = [step_work(SPEC, mixture, StepLoad(sequences=count, tokens=1, context=0)).bytes for count in (1, 3, 9)]
    assert read == [1000 + 32, 3000 + 3 * 32, 3500 + 9 * 32]


def test_the_slower_of_reading_and_computing_decides() -> None:
    reading = roof_of(StepWork(bytes=1500, products=2000, attention=400), CEILINGS, "int8", "bfloat16")
    assert (reading.seconds, reading.limit) == (1.5, "L3")
    computing = roof_of(StepWork(bytes=1500, products=4000, attention=2000), CEILINGS, "int8", "bfloat16")
    assert (computing.seconds, computing.limit) == (2.0, "arithmetic")
    assert roof_of(StepWork(bytes=1500, products=4000, attention=2000), CEILINGS, "bfloat16", "bfloat16").seconds == 3


def test_what_does_not_stay_in_the_cache_comes_from_memory() -> None:
    assert CEILINGS.level_of(2000).name == "L3"
    roof = roof_of(StepWork(bytes=2001, products=0, attention=0), CEILINGS, "int8", "bfloat16")
    assert (roof.seconds, roof.limit) == (20.01, "memory")
    assert CEILINGS.level_of(10**9).name == "memory"

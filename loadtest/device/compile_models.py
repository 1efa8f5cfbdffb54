"""The models whose launches are compiled ahead of time: one of each shape, structure, number format and cache that
changes a kernel's form, as a worker may be told to serve it.
"""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import replace as changed

from msgspec.structs import replace

from triolet.kernels.experts.routing import Routing
from triolet.models.checkpoint.experts import ExpertSpec
from triolet.models.checkpoint.latent import LatentSpec
from triolet.models.checkpoint.spec import LayerSpec, ModelSpec, WeightNames, alike
from triolet.models.gpu.stored import FLOAT32, StoredFormat
from triolet.protocol.settings import AdapterPlaces

MATRICES = ("head", *(f"0.{name}" for name in ("qkv", "o", "gate_up", "down", "shared_gate_up", "shared_down")))
NO_ADAPTERS, ADAPTERS = AdapterPlaces(), AdapterPlaces(count=16)


@dataclass(frozen=True, slots=True)
class LaunchedModel:
    """A model as a worker may be told to serve it. A layer of each kind has the launches of all."""

    spec: ModelSpec
    quantize: str = "none"
    kv_cache_dtype: str = "bfloat16"
    max_running: int = 256
    max_tokens: int = 8192
    max_rows: int = 256  # of logits, and so of a decode step
    adapters: AdapterPlaces = NO_ADAPTERS
    stored: StoredFormat | None = None  # of the head and all matrices of the first layer

    def smaller(self, tokens: int) -> LaunchedModel:
        """With steps of so many tokens, of few sequences: fewer shapes."""
        return changed(self, max_running=16, max_rows=16, max_tokens=tokens)


def _spec(
    family: str, vocab: int, hidden: int, heads: int, kv_heads: int, head_dim: int, mlp: int, **other: object
) -> ModelSpec:
    plain = ModelSpec(
        family=family, vocab_size=vocab, hidden_size=hidden, layers=alike(1), num_heads=heads, num_kv_heads=kv_heads,
        head_dim=head_dim, mlp_size=mlp, norm_eps=1e-5, max_position=131_072,
    )  # fmt: skip
    return replace(plain, **other)


LLAMA_8B = _spec("llama", 128_256, 4096, 32, 8, 128, 14_336)
LLAMA_70B = _spec("llama", 128_256, 8192, 64, 8, 128, 28_672)
QWEN3_600M = _spec("qwen3", 151_936, 1024, 16, 8, 128, 3072, qk_norm="head", tied_embeddings=True)
QWEN3_30B_A3B = _spec(
    "qwen3_moe", 151_936, 2048, 32, 4, 128, 0, qk_norm="head", layers=(LayerSpec(experts=True),),
    experts=ExpertSpec(count=128, width=768, routing=Routing(chosen=8, normalised=True)),
)  # fmt: skip
QWEN2_MOE = _spec(
    "qwen2_moe", 151_936, 2048, 16, 16, 128, 0, qkv_bias=True, layers=(LayerSpec(experts=True),),
    experts=ExpertSpec(count=60, width=1408, routing=Routing(chosen=4), shared_width=5632, shared_gated=True),
)  # fmt: skip
GPT_OSS_20B = _spec(
    "gpt_oss", 201_088, 2880, 64, 8, 64, 0, qkv_bias=True, out_bias=True, sinks=True,
    layers=(LayerSpec(experts=True, window=128), LayerSpec(experts=True)),
    experts=ExpertSpec(
        count=32, width=2880, routing=Routing(chosen=4, scores="softmax of chosen"), biased=True, gate_limit=7.0,
        gate_slope=1.702, up_offset=1.0,
    ),
)  # fmt: skip
_LATENT = LatentSpec(kv_rank=512, query_rank=None, plain_dim=128, rope_dim=64, value_dim=128)
DEEPSEEK_V2_LITE = _spec(
    "deepseek_v2", 102_400, 2048, 16, 1, 576, 10_944, latent=_LATENT, layers=(LayerSpec(), LayerSpec(experts=True)),
    experts=ExpertSpec(count=64, width=1408, routing=Routing(chosen=6), shared_width=2816),
)  # fmt: skip
DEEPSEEK_V3 = _spec(
    "deepseek_v3", 129_280, 7168, 128, 1, 576, 18_432, latent=replace(_LATENT, query_rank=1536),
    layers=(LayerSpec(), LayerSpec(experts=True)),
    experts=ExpertSpec(
        count=256, width=2048, corrected=True, shared_width=2048, routing=Routing(
            chosen=8, scores="sigmoid", normalised=True, scale=2.5, groups=8, chosen_groups=4, group_best=2
        ),
    ),
)  # fmt: skip
GEMMA2_9B = _spec(
    "gemma2", 256_000, 3584, 16, 8, 256, 14_336, norm_offset=1.0, activation="gelu_tanh", tied_embeddings=True,
    layers=(LayerSpec(window=4096), LayerSpec()), score_cap=50.0, logit_cap=30.0, embedding_factor=3584**0.5,
    names=WeightNames(after_attention="after", after_mlp="after"),
)  # fmt: skip
GEMMA3_4B = _spec(
    "gemma3", 262_208, 2560, 8, 4, 256, 10_240, norm_offset=1.0, activation="gelu_tanh", tied_embeddings=True,
    qk_norm="head", embedding_factor=2560**0.5, names=WeightNames(after_attention="after", after_mlp="after"),
)  # fmt: skip
Q4_0, AWQ = StoredFormat(4, 32, "float16"), StoredFormat(4, 128, "float16", "zeros")
Q4_1, Q4_K = StoredFormat(4, 32, "float16", "float16"), StoredFormat(4, 32, "float32", "float32")
Q8_0, Q6_K, MXFP4 = StoredFormat(8, 32, "float16"), StoredFormat(8, 16, "float32"), StoredFormat(8, 32, "bfloat16")
IQ4_XS = StoredFormat(8, 32, "float32")
GPTQ = (  # symmetric, and in the groups of sizes that 128 does not divide
    StoredFormat(4, 128, "float16"), StoredFormat(4, 64, "float16", "zeros"), StoredFormat(8, 64, "float16"),
)  # fmt: skip
QUANTIZE = ("none", "int8", "int4", "fp8")
MODELS = (
    *(LaunchedModel(LLAMA_8B, quantize) for quantize in QUANTIZE),
    *(LaunchedModel(LLAMA_8B, kv_cache_dtype=cache) for cache in ("fp8", "int8")),
    LaunchedModel(LLAMA_8B, adapters=ADAPTERS),
    *(LaunchedModel(LLAMA_8B, quantize) for quantize in ("w8a8", "fp8-block")),
    *(LaunchedModel(LLAMA_8B, quantize, adapters=ADAPTERS) for quantize in ("fp8", "w8a8")),
    LaunchedModel(LLAMA_70B, "fp8"),
    LaunchedModel(QWEN3_600M),
    *(LaunchedModel(QWEN3_600M, quantize) for quantize in ("fp8", "w8a8", "fp8-block")),
    LaunchedModel(GEMMA2_9B),
    LaunchedModel(GEMMA3_4B),
    *(LaunchedModel(spec, quantize) for spec in (QWEN3_30B_A3B, GPT_OSS_20B) for quantize in QUANTIZE),
    LaunchedModel(QWEN2_MOE),
    *(LaunchedModel(spec, quantize) for spec in (DEEPSEEK_V2_LITE, DEEPSEEK_V3) for quantize in ("none", "fp8")),
    *(LaunchedModel(LLAMA_8B, stored=stored) for stored in (AWQ, *GPTQ, IQ4_XS, Q4_0, Q4_1, Q4_K, Q6_K, Q8_0)),
    *(LaunchedModel(QWEN2_MOE, stored=stored) for stored in (AWQ, Q4_0, Q4_K, Q6_K, Q8_0)),
    LaunchedModel(GPT_OSS_20B, stored=MXFP4),
    # For whoever wants the definition on the device: few at a time.
    LaunchedModel(QWEN3_600M, FLOAT32, FLOAT32, 16, 512, 16, ADAPTERS),
    LaunchedModel(GPT_OSS_20B, FLOAT32, FLOAT32, 16, 512, 16),
)

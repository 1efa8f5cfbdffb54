"""All families by the architecture that a config.json names, and the way from a config.json to a `ModelSpec`."""

from collections.abc import Callable, Mapping
from pathlib import Path

from msgspec.structs import replace

from ...errors import CheckpointError
from ..config import Config
from ..files import read_json
from ..spec import ModelSpec
from .cohere import cohere, cohere2
from .deepseek import deepseek_v2, deepseek_v3
from .gemma import gemma, gemma2, gemma3
from .glm import glm, glm4
from .llama import arcee, granite, llama, nemotron, smollm3
from .mistral import ministral, ministral3, mistral
from .mixtures import gpt_oss, mixtral, olmoe, qwen2_moe, qwen3_moe
from .olmo import olmo2, olmo3
from .phi import phi3
from .qwen import qwen2, qwen3
from .stablelm import stablelm

MAX_CONFIG_BYTES = 4 << 20

# architecture: (model_type, the family's function)
FAMILIES: dict[str, tuple[str, Callable[[Config], ModelSpec]]] = {
    "LlamaForCausalLM": ("llama", llama),
    "MistralForCausalLM": ("mistral", mistral),
    "Qwen2ForCausalLM": ("qwen2", qwen2),
    "Qwen3ForCausalLM": ("qwen3", qwen3),
    "MixtralForCausalLM": ("mixtral", mixtral),
    "Qwen2MoeForCausalLM": ("qwen2_moe", qwen2_moe),
    "Qwen3MoeForCausalLM": ("qwen3_moe", qwen3_moe),
    "ArceeForCausalLM": ("arcee", arcee),
    "CohereForCausalLM": ("cohere", cohere),
    "Cohere2ForCausalLM": ("cohere2", cohere2),
    "DeepseekV2ForCausalLM": ("deepseek_v2", deepseek_v2),
    "DeepseekV3ForCausalLM": ("deepseek_v3", deepseek_v3),
    "GemmaForCausalLM": ("gemma", gemma),
    "Gemma2ForCausalLM": ("gemma2", gemma2),
    "Gemma3ForCausalLM": ("gemma3_text", gemma3),
    "GlmForCausalLM": ("glm", glm),
    "Glm4ForCausalLM": ("glm4", glm4),
    "GptOssForCausalLM": ("gpt_oss", gpt_oss),
    "GraniteForCausalLM": ("granite", granite),
    "MinistralForCausalLM": ("ministral", ministral),
    "Ministral3ForCausalLM": ("ministral3", ministral3),
    "NemotronForCausalLM": ("nemotron", nemotron),
    "Olmo2ForCausalLM": ("olmo2", olmo2),
    "Olmo3ForCausalLM": ("olmo3", olmo3),
    "OlmoeForCausalLM": ("olmoe", olmoe),
    "Phi3ForCausalLM": ("phi3", phi3),
    "SmolLM3ForCausalLM": ("smollm3", smollm3),
    "StableLmForCausalLM": ("stablelm", stablelm),
}

# Families whose folders hold the code that became transformers' own; it is not run here either.
SHIPPED_WITH_CODE = ("phi3", "deepseek_v2", "deepseek_v3")


def load_spec(path: Path, *, headless: bool = False) -> ModelSpec:
    """Read `config.json` of a checkpoint folder."""
    return spec_from_config(read_json(path, "config.json", MAX_CONFIG_BYTES), headless=headless)


def spec_from_config(values: Mapping[str, object], *, headless: bool = False) -> ModelSpec:
    """Raises CheckpointError or UnsupportedModel, naming the key and its value.

    `headless`: the architecture may be that of a model without its LM head (Qwen3Model), as embedding models are saved.
    """
    config = Config(values)
    supported = ", ".join(FAMILIES)
    if config.text("model_type", "") not in SHIPPED_WITH_CODE:
        config.must_be("auto_map", {}, remedy="this model needs code from its folder, which Triolet never runs")
    architectures = config.texts("architectures")
    model_type = config.text("model_type", "")
    if architectures is None:
        architectures = [name for name, (family, _) in FAMILIES.items() if family == model_type]
    without_head = headless and len(architectures) == 1 and architectures[0].endswith("Model")
    if without_head:
        architectures = [architectures[0].removesuffix("Model") + "ForCausalLM"]
    if len(architectures) != 1 or architectures[0] not in FAMILIES:
        raise config.unsupported("architectures", f"expected one of {supported} (model_type is {model_type!r})")
    family, read = FAMILIES[architectures[0]]
    config.must_be("model_type", family, remedy=f"architectures = {architectures[0]} needs model_type = {family}")
    spec = read(config)
    _refuse_other_factors(spec)
    return replace(spec, tied_embeddings=True) if without_head else spec


def _refuse_other_factors(spec: ModelSpec) -> None:
    """Where a rotation has a number for each pair of dimensions, as many as there are."""
    pairs = (spec.rotary_dim or spec.turned_dim) // 2
    for rope in {layer.rope for layer in spec.layers if layer.rope is not None}:
        factors = {"factors": rope.factors, "short_factor": rope.short_factors, "long_factor": rope.long_factors}
        for name, found in factors.items():
            if len(found) not in (0, pairs):
                raise CheckpointError(name, len(found), f"numbers; expected {pairs}, one for each pair of dimensions")

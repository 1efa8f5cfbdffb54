"""All experts in one tensor: what is refused, and the numbers of MXFP4. The parity tests compare the models."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pytest
import safetensors.numpy

from triolet.kernels.gemm.tile_fp4 import looked_up_here
from triolet.models.checkpoint import fused
from triolet.models.checkpoint.checkpoint import CheckpointFolder
from triolet.models.checkpoint.quantised import mxfp4 as mxfp4_file
from triolet.models.checkpoint.stored import StoredMatrix
from triolet.models.checkpoint.weights import load_weights
from triolet.models.cpu.load import described_dtype, plan_on_cpu
from triolet.models.errors import CheckpointError, UnsupportedModel
from triolet.protocol.settings import EngineSettings

EXPERTS, HIDDEN, WIDTH, HEADS, VOCABULARY = 4, 64, 32, 2, 48
CONFIG = {
    "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "vocab_size": VOCABULARY, "hidden_size": HIDDEN,
    "intermediate_size": WIDTH, "num_hidden_layers": 1, "num_attention_heads": HEADS, "num_key_value_heads": HEADS,
    "head_dim": 32, "max_position_embeddings": 64, "num_local_experts": EXPERTS, "num_experts_per_tok": 2,
    "eos_token_id": 3,
}  # fmt: skip
PREFIX = "model.layers.0."
GATE_UP, DOWN = f"{PREFIX}mlp.experts.gate_up_proj", f"{PREFIX}mlp.experts.down_proj"
Tensors = dict[str, npt.NDArray[Any]]


def others() -> Tensors:
    """All tensors but the experts' matrices."""
    rng = np.random.default_rng(0)

    def take(*shape: int) -> npt.NDArray[np.float16]:
        return (rng.standard_normal(shape) / 8).astype(np.float16)

    tensors = {"model.embed_tokens.weight": take(VOCABULARY, HIDDEN), "lm_head.weight": take(VOCABULARY, HIDDEN)}
    for name in ("model.norm", f"{PREFIX}input_layernorm", f"{PREFIX}post_attention_layernorm"):
        tensors[f"{name}.weight"] = take(HIDDEN)
    for name in ("q", "k", "v", "o"):
        tensors[f"{PREFIX}self_attn.{name}_proj.weight"] = take(64, 64)
        tensors[f"{PREFIX}self_attn.{name}_proj.bias"] = take(64)
    tensors[f"{PREFIX}self_attn.sinks"] = take(HEADS)
    tensors[f"{PREFIX}mlp.router.weight"], tensors[f"{PREFIX}mlp.router.bias"] = take(EXPERTS, HIDDEN), take(EXPERTS)
    tensors[f"{GATE_UP}_bias"], tensors[f"{DOWN}_bias"] = take(EXPERTS, 2 * WIDTH), take(EXPERTS, HIDDEN)
    return tensors


def plain() -> Tensors:
    rng = np.random.default_rng(1)
    shapes = {GATE_UP: (EXPERTS, HIDDEN, 2 * WIDTH), DOWN: (EXPERTS, WIDTH, HIDDEN)}
    return {name: rng.standard_normal(shape).astype(np.float16) for name, shape in shapes.items()}


def mxfp4() -> Tensors:
    """Every code with every exponent that is read."""
    rng = np.random.default_rng(2)
    tensors: Tensors = {}
    for name, outputs, inputs in ((GATE_UP, 2 * WIDTH, HIDDEN), (DOWN, HIDDEN, WIDTH)):
        shape = (EXPERTS, outputs, inputs // 32)
        tensors[f"{name}_blocks"] = rng.integers(0, 256, (*shape, 16), np.uint8)
        tensors[f"{name}_scales"] = (np.arange(np.prod(shape)) % 253).astype(np.uint8).reshape(shape)
    return tensors


def write(folder: Path, experts: Tensors, **options: object) -> CheckpointFolder:
    folder.mkdir(exist_ok=True)
    quantised = {} if GATE_UP in experts else {"quantization_config": {"quant_method": "mxfp4"}}
    (folder / "config.json").write_text(json.dumps({**CONFIG, **quantised, **options}))
    safetensors.numpy.save_file(others() | experts, folder / "model.safetensors")
    return CheckpointFolder(folder)


def test_an_expert_is_a_part_of_the_tensors(tmp_path: Path) -> None:
    tensors = plain()
    experts = load_weights(write(tmp_path / "model", tensors)).layers[0].experts
    assert experts is not None
    bias = others()[f"{GATE_UP}_bias"]
    for index, one in enumerate(experts.experts):
        np.testing.assert_array_equal(one.gate, tensors[GATE_UP][index, :, 0::2].T)
        np.testing.assert_array_equal(one.up, tensors[GATE_UP][index, :, 1::2].T)
        np.testing.assert_array_equal(one.down, tensors[DOWN][index].T)
        assert one.up_bias is not None
        np.testing.assert_array_equal(one.up_bias, bias[index, 1::2])


def number(code: int) -> float:
    """An E2M1 number by its definition: a sign, two bits of exponent with the bias 1, one of mantissa."""
    exponent, mantissa = code >> 1 & 3, code & 1
    size = mantissa / 2 if exponent == 0 else 2.0 ** (exponent - 1) * (1 + mantissa / 2)
    return -size if code & 8 else size


def test_numbers_of_mxfp4_are_exact(tmp_path: Path) -> None:
    """Each is representable in bfloat16: the lower half of its float32 is zeros."""
    tensors = mxfp4()
    checkpoint = write(tmp_path / "model", tensors)
    experts = load_weights(checkpoint).layers[0].experts
    assert experts is not None
    values = np.array([number(code) for code in range(16)])
    for index, one in enumerate(experts.experts):
        for matrix, name, rows in ((one.gate, GATE_UP, 0), (one.up, GATE_UP, 1), (one.down, DOWN, None)):
            part = slice(None) if rows is None else slice(rows, None, 2)
            blocks, scales = (tensors[f"{name}_{kind}"][index, part] for kind in ("blocks", "scales"))
            codes = np.stack([blocks & 15, blocks >> 4], axis=-1).reshape(*blocks.shape[:2], 32)
            powers = 2.0 ** (scales.astype(np.float64) - 127)
            assert isinstance(matrix, StoredMatrix)
            found = matrix.rows(0, len(matrix))
            np.testing.assert_array_equal(found, (values[codes] * powers[..., None]).reshape(found.shape))
            assert not (found.view(np.uint32) & 0xFFFF).any()
    more = "; MXFP4 in 6-bit codes, 6KiB more than the file"
    cases: tuple[tuple[Literal["auto", "bfloat16"], str], ...] = (
        ("auto", "MXFP4 as stored, other matrices in 16 bits" + ("" if looked_up_here() else more)),
        ("bfloat16", "bfloat16 (widened from MXFP4)"),
    )
    for dtype, described in cases:
        sizes, _ = plan_on_cpu(checkpoint, EngineSettings(model="model", dtype=dtype), 1 << 30)
        assert described_dtype(checkpoint, sizes.weight_format) == described


def without(tensors: Tensors, name: str) -> None:
    del tensors[name]


WRONG: dict[str, tuple[Callable[[], Tensors], Callable[[Tensors], object], str]] = {
    "another number": (plain, lambda t: t.update({DOWN: t[DOWN][:3]}), r"down_proj = \(3, .*4 experts, as config"),
    "a matrix": (plain, lambda t: t.update({GATE_UP: t[GATE_UP][0]}), r"gate_up_proj = .*4 experts"),
    "nothing": (plain, lambda t: t.update({DOWN: t[DOWN][..., :0]}), r"down_proj = .*4 experts"),
    "another width": (plain, lambda t: t.update({DOWN: t[DOWN][:, :8]}), r"0\.down_proj\.weight = .*implies"),
    "missing": (plain, lambda t: without(t, DOWN), r"0\.down_proj\.weight = None: this weight is missing"),
    "no scales": (mxfp4, lambda t: without(t, f"{DOWN}_scales"), r"down_proj_scales = None: missing beside"),
    "other scales": (
        mxfp4, lambda t: t.update({f"{DOWN}_scales": t[f"{DOWN}_scales"][:, :8]}), r"down_proj_blocks = .*the scales",
    ),
    "an odd row": (
        mxfp4, lambda t: t.update({f"{GATE_UP}_blocks": t[f"{GATE_UP}_blocks"][:, :63]}), r"expected bytes",
    ),
    "no bytes": (
        mxfp4, lambda t: t.update({f"{DOWN}_blocks": t[f"{DOWN}_blocks"].astype(np.int8)}), r"expected bytes",
    ),
    "another projection": (
        mxfp4, lambda t: t.update({f"{PREFIX}mlp.other_blocks": np.zeros(4, np.uint8)}), r"are read: gate_up_proj",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_does_not_fit_is_refused(case: str, tmp_path: Path) -> None:
    make, change, message = WRONG[case]
    tensors = make()
    change(tensors)
    with pytest.raises((CheckpointError, UnsupportedModel), match=message):
        load_weights(write(tmp_path / "model", tensors))


@pytest.mark.parametrize("make", [plain, mxfp4])
def test_more_experts_than_any_model_has_are_refused(
    make: Callable[[], Tensors], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fused, "MAX_PIECES", 2 * EXPERTS - 1)
    monkeypatch.setattr(mxfp4_file, "MAX_PIECES", 2 * EXPERTS - 1)
    with pytest.raises(CheckpointError, match=r"experts\..*_proj.* = 4: experts; at most 7"):
        write(tmp_path / "model", make())


@pytest.mark.parametrize("exponent", [253, 255])
def test_a_scale_that_is_too_large_is_refused(exponent: int, tmp_path: Path) -> None:
    tensors = mxfp4()
    tensors[f"{DOWN}_scales"][2, 5] = exponent
    experts = load_weights(write(tmp_path / "model", tensors)).layers[0].experts
    assert experts is not None
    matrix = experts.experts[2].down
    assert isinstance(matrix, StoredMatrix)
    with pytest.raises(CheckpointError, match=f"down_proj_scales = {exponent}: .*damaged"):
        matrix.rows(0, 8)

"""gpt-oss in MXFP4 as a folder and as a GGUF file is one checkpoint: spec, names, codes, logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from triolet.models.checkpoint.gguf.checkpoint import GgufCheckpoint
from triolet.models.checkpoint.stored import StoredMatrix, Weight, float_part
from triolet.models.checkpoint.weights import load_weights
from triolet.models.reference.decoder import reference_logits

from ..test_fused import CONFIG, DOWN, EXPERTS, GATE_UP, mxfp4, others, write
from .written import Tensor, Typed, plain, write_gguf

# Keys and names as llama.cpp's converter and loader have them: conversion/gpt_oss.py, src/models/openai-moe.cpp
METADATA: dict[str, Any] = {
    "general.architecture": "gpt-oss", "gpt-oss.block_count": 1, "gpt-oss.context_length": 64,
    "gpt-oss.embedding_length": CONFIG["hidden_size"], "gpt-oss.feed_forward_length": CONFIG["intermediate_size"],
    "gpt-oss.expert_feed_forward_length": CONFIG["intermediate_size"], "gpt-oss.attention.head_count": 2,
    "gpt-oss.attention.head_count_kv": 2, "gpt-oss.attention.key_length": 32, "gpt-oss.attention.value_length": 32,
    "gpt-oss.attention.layer_norm_rms_epsilon": 1e-5, "gpt-oss.attention.sliding_window": 128,
    "gpt-oss.expert_count": EXPERTS, "gpt-oss.expert_used_count": 2, "gpt-oss.rope.freq_base": 150_000.0,
    "gpt-oss.rope.scaling.type": "yarn", "gpt-oss.rope.scaling.factor": 32.0,
    "gpt-oss.rope.scaling.original_context_length": 4096, "tokenizer.ggml.eos_token_id": Typed("u32", 3),
}  # fmt: skip
NAMES = {
    "model.embed_tokens.weight": "token_embd.weight", "lm_head.weight": "output.weight",
    "model.norm.weight": "output_norm.weight", "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "post_attention_norm.weight", "self_attn.sinks": "attn_sinks.weight",
    "mlp.router.weight": "ffn_gate_inp.weight", "mlp.router.bias": "ffn_gate_inp.bias",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
}  # fmt: skip
TOKENS = [3, 1, 4, 1, 5, 9]


def file_name(name: str) -> str:
    for own, theirs in NAMES.items():
        name = name.replace(own, theirs)
    return name.replace("model.layers.", "blk.")


def in_blocks(blocks: npt.NDArray[np.uint8], scales: npt.NDArray[np.uint8]) -> Tensor:
    """A block is the exponent, then 16 bytes: of byte j the lower half is weight j, the upper one weight 16 + j."""
    codes = np.stack([blocks & 15, blocks >> 4], axis=-1).reshape(*blocks.shape[:3], 32)
    packed = codes[..., :16] | codes[..., 16:] << 4
    data = np.concatenate([scales[..., None], packed], axis=-1)
    return Tensor("MXFP4", (*blocks.shape[:2], blocks.shape[2] * 32), data.astype(np.uint8).tobytes())


def write_file(folder: Path, experts: dict[str, npt.NDArray[Any]]) -> GgufCheckpoint:
    tensors = dict[str, Tensor]()
    for name, values in others().items():
        wide = np.asarray(values, np.float32)
        if name == f"{GATE_UP}_bias":
            tensors["blk.0.ffn_gate_exps.bias"] = plain(np.ascontiguousarray(wide[:, 0::2]))
            tensors["blk.0.ffn_up_exps.bias"] = plain(np.ascontiguousarray(wide[:, 1::2]))
        elif name == f"{DOWN}_bias":
            tensors["blk.0.ffn_down_exps.bias"] = plain(wide)
        else:
            tensors[file_name(name)] = plain(wide)
    for part, rows in (("gate", slice(0, None, 2)), ("up", slice(1, None, 2)), ("down", slice(None))):
        whole = DOWN if part == "down" else GATE_UP
        own = (experts[f"{whole}_{kind}"][:, rows] for kind in ("blocks", "scales"))
        tensors[f"blk.0.ffn_{part}_exps.weight"] = in_blocks(*own)
    return GgufCheckpoint(write_gguf(folder / "m.gguf", METADATA, tensors))


def test_the_file_is_the_folder(tmp_path: Path) -> None:
    tensors = {name: array % 4 + 120 if "scales" in name else array for name, array in mxfp4().items()}
    folder, file = write(tmp_path / "folder", tensors), write_file(tmp_path, tensors)
    assert (file.spec, file.tensor_names) == (folder.spec, folder.tensor_names)

    def values(weight: Weight) -> npt.NDArray[np.float32]:
        return float_part(weight, 0, len(weight))

    for name in folder.tensor_names:
        np.testing.assert_array_equal(values(file.read_tensor(name)), values(folder.read_tensor(name)))
        assert isinstance(file.read_tensor(name), StoredMatrix) == isinstance(folder.read_tensor(name), StoredMatrix)
    logits = [reference_logits(one.spec, load_weights(one), TOKENS) for one in (folder, file)]
    np.testing.assert_array_equal(logits[0], logits[1])
    turned = write_file(tmp_path, {**tensors, f"{DOWN}_blocks": tensors[f"{DOWN}_blocks"][::-1]})
    assert not np.array_equal(reference_logits(turned.spec, load_weights(turned), TOKENS), logits[0])

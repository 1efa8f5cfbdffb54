"""The bundled model as GGUF files, and the greedy tokens that llama.cpp gives for them: writes greedy.json.

    pip install llama-cpp-python==0.3.36 && python -m tests.models.checkpoint.gguf.bundled

A trained model, because random ones have near ties everywhere: both engines round activations, each in its own way, and
the texts of random weights part after a few tokens. Prompts and answers are shorter than the window of the model's
attention, of which the file says nothing.
"""

import json
import random
import tempfile
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from triolet.cli.options import BUNDLED_MODEL
from triolet.models.checkpoint.safetensors import SafetensorsFile, to_float32

from .written import Tensor, Typed, plain, write_gguf

GREEDY = Path(__file__).with_name("greedy.json")
NEW_TOKENS = 32
ENDS = (0, 2)
NAMES = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    "model.embed_tokens": "token_embd", "model.norm": "output_norm",
}  # fmt: skip
FloatArray = npt.NDArray[np.float32]


def in_8_bits(matrix: FloatArray) -> Tensor:
    """Q8_0: a float16 and 32 integers."""
    blocks = matrix.reshape(-1, 32)
    scales = np.abs(blocks).max(axis=1, keepdims=True) / 127
    codes = np.rint(blocks / scales).astype(np.int8)
    data = np.hstack([scales.astype(np.float16).view(np.uint8), codes.view(np.uint8)])
    return Tensor("Q8_0", matrix.shape, data.tobytes())


def in_4_bits(matrix: FloatArray) -> Tensor:
    """Q4_0: a float16, and 32 integers around 8, of which the largest value becomes 0."""
    blocks = matrix.reshape(-1, 32)
    largest = np.take_along_axis(blocks, np.abs(blocks).argmax(axis=1)[:, None], axis=1)
    scales = largest / np.float32(-8)
    codes = np.minimum(blocks / scales + np.float32(8.5), 15).astype(np.uint8)
    data = np.hstack([scales.astype(np.float16).view(np.uint8), codes[:, :16] | codes[:, 16:] << 4])
    return Tensor("Q4_0", matrix.shape, data.tobytes())


def in_16_bits(matrix: FloatArray) -> Tensor:
    return plain((matrix.view(np.uint32) >> 16).astype(np.uint16))


TYPES: dict[str, Callable[[FloatArray], Tensor]] = {"BF16": in_16_bits, "Q8_0": in_8_bits, "Q4_0": in_4_bits}


def write_bundled(path: Path, kind: str, **wrong: float) -> Path:
    """All matrices in this type, but the embedding not in 4 bits: llama.cpp's quantiser spares it too.

    `wrong`: metadata that is not the model's.
    """
    config = json.loads((BUNDLED_MODEL / "config.json").read_text())
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    file = SafetensorsFile(BUNDLED_MODEL, "model.safetensors")
    tensors: dict[str, Tensor] = {}
    for name in file.tensors:
        values = to_float32(file.read(name))
        *layer, part = name.removesuffix(".weight").removeprefix("model.layers.").split(".", 1)
        renamed = f"blk.{layer[0]}.{NAMES[part]}" if layer != ["model"] else NAMES[f"model.{part}"]
        if (turned := heads.get(part.rpartition(".")[2])) is not None:  # the halves of a head in turn
            values = values.reshape(turned, 2, -1, values.shape[1]).swapaxes(1, 2).reshape(values.shape)
        write = in_8_bits if renamed == "token_embd" and kind == "Q4_0" else TYPES[kind]
        tensors[f"{renamed}.weight"] = plain(values) if values.ndim == 1 else write(values)
    return write_gguf(path, {**_sizes(config), **_tokens(config), **wrong}, tensors)


def _sizes(config: dict[str, Any]) -> dict[str, Any]:
    return {
        "general.architecture": "llama",
        "llama.block_count": config["num_hidden_layers"],
        "llama.context_length": 256,
        "llama.embedding_length": config["hidden_size"],
        "llama.feed_forward_length": config["intermediate_size"],
        "llama.attention.head_count": config["num_attention_heads"],
        "llama.attention.head_count_kv": config["num_key_value_heads"],
        "llama.attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "llama.rope.freq_base": config["rope_theta"],
        "llama.rope.dimension_count": config["head_dim"],
        "llama.vocab_size": config["vocab_size"],
    }


def _tokens(config: dict[str, Any]) -> dict[str, Any]:
    tokenizer = json.loads((BUNDLED_MODEL / "tokenizer.json").read_text())
    special = {token["content"]: 3 if token["special"] else 4 for token in tokenizer["added_tokens"]}
    vocabulary = tokenizer["model"]["vocab"] | {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    assert len(tokens) == config["vocab_size"]
    merges = tokenizer["model"]["merges"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": Typed("i32", [special.get(token, 1) for token in tokens]),
        "tokenizer.ggml.merges": [merge if isinstance(merge, str) else " ".join(merge) for merge in merges],
        "tokenizer.ggml.eos_token_id": ENDS[1],
        "tokenizer.ggml.add_bos_token": False,
    }


@cache
def prompts() -> list[list[int]]:
    """As the bundled model's template has them."""
    draw = random.Random(0)
    asked = [f"What is {draw.randrange(2, 90)} {draw.choice('+-*')} {draw.randrange(2, 90)}?" for _ in range(12)]
    asked += [f"What is the capital of {land}?" for land in ("France", "Japan", "Egypt", "Brazil", "Canada", "Norway")]
    asked += ["Hello!", "Who are you?", "Count from 1 to 10."]  # no stories, whose every word might be another
    tokenizer = Tokenizer.from_file(str(BUNDLED_MODEL / "tokenizer.json"))
    texts = [f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n" for text in asked]
    return [tokenizer.encode(text).ids for text in texts]


def main() -> None:
    llama_cpp: Any = import_module("llama_cpp")  # Any: not among the tests' packages
    found: dict[str, list[list[int]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for kind in TYPES:
            path = write_bundled(Path(folder, f"{kind}.gguf"), kind)
            model = llama_cpp.Llama(str(path), n_ctx=256, n_threads=1, n_threads_batch=1, verbose=False)
            found[kind] = []
            for prompt in prompts():
                tokens: list[int] = []
                for token in model.generate(prompt, temp=0.0, top_k=1, repeat_penalty=1.0):
                    tokens.append(token)
                    if len(tokens) == NEW_TOKENS or token in ENDS:
                        break
                model.reset()
                found[kind].append(tokens)
    GREEDY.write_text(json.dumps(found, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()

"""Makes the checkpoint that CPU engines are compared on: a Llama of 125 million parameters with random weights.

    python -m triolet.loadtest.peers.reference_model OUT [--gguf]

Speed does not depend on what the weights are. OUT/hf is a checkpoint folder as Hugging Face writes it; with --gguf (the
`gguf` package is then needed) OUT/{bf16,q8,q4}.gguf hold the same weights for llama.cpp. Imports nothing of ours, so
that it also runs as a file in another engine's environment.
"""

import argparse
import json
import sysconfig
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

CONFIG: dict[str, Any] = {  # Any: JSON
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "dtype": "bfloat16",
    "vocab_size": 32000,
    "hidden_size": 768,
    "intermediate_size": 2048,
    "num_hidden_layers": 16,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "hidden_act": "silu",
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": True,
    "bos_token_id": 0,
    "eos_token_id": 2,
}
SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
DEVIATION = 0.02  # of the weights: the order of a trained model's, so that nothing overflows


def shapes() -> Iterator[tuple[str, tuple[int, ...]]]:
    """Every weight by Hugging Face's name. The output layer is the embedding."""
    hidden, inner = CONFIG["hidden_size"], CONFIG["intermediate_size"]
    kv = CONFIG["num_key_value_heads"] * CONFIG["head_dim"]
    yield "model.embed_tokens.weight", (CONFIG["vocab_size"], hidden)
    for layer in range(CONFIG["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        yield prefix + "input_layernorm.weight", (hidden,)
        for name, rows in (("q_proj", hidden), ("k_proj", kv), ("v_proj", kv)):
            yield f"{prefix}self_attn.{name}.weight", (rows, hidden)
        yield prefix + "self_attn.o_proj.weight", (hidden, hidden)
        yield prefix + "post_attention_layernorm.weight", (hidden,)
        yield prefix + "mlp.gate_proj.weight", (inner, hidden)
        yield prefix + "mlp.up_proj.weight", (inner, hidden)
        yield prefix + "mlp.down_proj.weight", (hidden, inner)
    yield "model.norm.weight", (hidden,)


def write_tokenizer(folder: Path) -> None:
    """A byte-level BPE of the right size, learnt from the standard library's sources."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    library = Path(sysconfig.get_paths()["stdlib"])
    left_out = {"site-packages", "test", "tests"}
    files = [path for path in sorted(library.rglob("*.py")) if not left_out & set(path.parts)]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=CONFIG["vocab_size"],
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((path.read_text(errors="replace") for path in files), trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"chat_template": CHAT_TEMPLATE, "bos_token": SPECIAL_TOKENS[0], "eos_token": SPECIAL_TOKENS[2]}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2))


def write_checkpoint(folder: Path) -> dict[str, Any]:
    """The folder, and its weights for `write_gguf`. Any: torch tensors, and torch is imported here alone."""
    import safetensors.torch
    import torch

    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(0)
    weights = {
        name: (torch.ones(shape) if len(shape) == 1 else torch.randn(shape, generator=generator) * DEVIATION).bfloat16()
        for name, shape in shapes()
    }
    safetensors.torch.save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=2))
    write_tokenizer(folder)
    return weights


GGUF_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
}


def gguf_name(name: str) -> str:
    """`model.layers.3.mlp.up_proj.weight` -> `blk.3.ffn_up.weight`."""
    stem = name.removesuffix(".weight")
    if not stem.startswith("model.layers."):
        return f"{GGUF_NAMES[stem]}.weight"
    layer, part = stem.removeprefix("model.layers.").split(".", 1)
    return f"blk.{layer}.{GGUF_NAMES[part]}.weight"


def interleaved(matrix: Any, heads: int) -> Any:
    """GGUF's Llama keeps the two halves of a head's rotary dimensions in turn, Hugging Face's one after the other."""
    rows, columns = matrix.shape
    return matrix.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def write_gguf(path: Path, weights: dict[str, Any], tokenizer: Path, kind_name: str) -> None:
    """The weights in llama.cpp's format: matrices quantised to `kind_name`, vectors in float32."""
    gguf: Any = import_module("gguf")  # Any: not installed where types are checked
    import numpy as np

    kind = gguf.GGMLQuantizationType[kind_name]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("reference-125m")
    writer.add_context_length(CONFIG["max_position_embeddings"])
    writer.add_embedding_length(CONFIG["hidden_size"])
    writer.add_block_count(CONFIG["num_hidden_layers"])
    writer.add_feed_forward_length(CONFIG["intermediate_size"])
    writer.add_head_count(CONFIG["num_attention_heads"])
    writer.add_head_count_kv(CONFIG["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(CONFIG["rms_norm_eps"])
    writer.add_rope_freq_base(CONFIG["rope_theta"])
    writer.add_rope_dimension_count(CONFIG["head_dim"])
    writer.add_vocab_size(CONFIG["vocab_size"])
    bpe = json.loads(tokenizer.read_text())["model"]
    tokens = sorted(bpe["vocab"], key=bpe["vocab"].__getitem__)
    normal, control = gguf.TokenType.NORMAL, gguf.TokenType.CONTROL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_types([control if token in SPECIAL_TOKENS else normal for token in tokens])
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in bpe["merges"]])
    writer.add_bos_token_id(CONFIG["bos_token_id"])
    writer.add_eos_token_id(CONFIG["eos_token_id"])
    writer.add_add_bos_token(False)
    turned = {"q_proj": CONFIG["num_attention_heads"], "k_proj": CONFIG["num_key_value_heads"]}
    for name, tensor in weights.items():
        values = tensor.float().numpy()
        part = name.split(".")[-2]
        if part in turned:
            values = interleaved(values, turned[part])
        if values.ndim == 1:
            writer.add_tensor(gguf_name(name), values.astype(np.float32))
        else:
            writer.add_tensor(gguf_name(name), gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder to write to")
    parser.add_argument("--gguf", action="store_true", help="also write GGUF files for llama.cpp")
    arguments = parser.parse_args()
    weights = write_checkpoint(arguments.out / "hf")
    if arguments.gguf:
        for stem, kind in (("bf16", "BF16"), ("q8", "Q8_0"), ("q4", "Q4_0")):
            write_gguf(arguments.out / f"{stem}.gguf", weights, arguments.out / "hf" / "tokenizer.json", kind)


if __name__ == "__main__":
    main()

"""Makes checkpoints of random weights in the shapes of real models, for comparisons of CPU engines.

    python -m triolet.loadtest.peers.reference_model OUT [--shape llama-3.2-1b] [--gguf]

Speed does not depend on what the weights are. OUT/hf is a checkpoint folder as Hugging Face writes it; with --gguf (the
`gguf` package and llama-cpp-python are then needed) OUT/{bf16,q8,q4,q4_k_m}.gguf hold the same weights, quantised by
llama.cpp itself. Imports nothing of ours, so that it also runs as a file in another engine's environment.
"""

import argparse
import json
import sysconfig
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

COMMON: dict[str, Any] = {  # Any: JSON
    "dtype": "bfloat16",
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": True,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "max_position_embeddings": 16384,
}
LLAMA: dict[str, Any] = {**COMMON, "architectures": ["LlamaForCausalLM"], "model_type": "llama"}
QWEN3: dict[str, Any] = {**COMMON, "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}
SHAPES: dict[str, dict[str, Any]] = {
    "reference-125m": {
        **LLAMA, "vocab_size": 32000, "hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 16,
        "num_attention_heads": 12, "num_key_value_heads": 4, "head_dim": 64, "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
    },
    "llama-3.2-1b": {
        **LLAMA, "vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
    },
    "qwen3-0.6b": {
        **QWEN3, "vocab_size": 151936, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28,
        "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
    },
}  # fmt: skip
LEARNT_TOKENS = 32000  # of a larger vocabulary the rest is filled up: no engine's speed depends on their texts
SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
DEVIATION = 0.02  # of the weights: the order of a trained model's, so that nothing overflows


def shapes(config: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Every weight by Hugging Face's name. The output layer is the embedding."""
    hidden, inner, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, kv = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    yield "model.embed_tokens.weight", (config["vocab_size"], hidden)
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        yield prefix + "input_layernorm.weight", (hidden,)
        for name, rows in (("q_proj", queries), ("k_proj", kv), ("v_proj", kv)):
            yield f"{prefix}self_attn.{name}.weight", (rows, hidden)
        if config["model_type"] == "qwen3":
            yield prefix + "self_attn.q_norm.weight", (head,)
            yield prefix + "self_attn.k_norm.weight", (head,)
        yield prefix + "self_attn.o_proj.weight", (hidden, queries)
        yield prefix + "post_attention_layernorm.weight", (hidden,)
        yield prefix + "mlp.gate_proj.weight", (inner, hidden)
        yield prefix + "mlp.up_proj.weight", (inner, hidden)
        yield prefix + "mlp.down_proj.weight", (hidden, inner)
    yield "model.norm.weight", (hidden,)


def write_tokenizer(folder: Path, vocab_size: int) -> None:
    """A byte-level BPE of the right size, learnt from the standard library's sources."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    library = Path(sysconfig.get_paths()["stdlib"])
    left_out = {"site-packages", "test", "tests"}
    files = [path for path in sorted(library.rglob("*.py")) if not left_out & set(path.parts)]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=min(vocab_size, LEARNT_TOKENS),
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((path.read_text(errors="replace") for path in files), trainer)
    written = json.loads(tokenizer.to_str())
    vocabulary = written["model"]["vocab"]
    vocabulary.update({f"filler{token}": token for token in range(len(vocabulary), vocab_size)})
    (folder / "tokenizer.json").write_text(json.dumps(written))
    settings = {
        "chat_template": CHAT_TEMPLATE, "bos_token": SPECIAL_TOKENS[0], "eos_token": SPECIAL_TOKENS[2],
        "tokenizer_class": "PreTrainedTokenizerFast",
    }  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2))


def write_checkpoint(folder: Path, config: dict[str, Any]) -> dict[str, Any]:
    """The folder, and its weights for `write_gguf`. Any: torch tensors, and torch is imported here alone."""
    import safetensors.torch
    import torch

    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(0)
    weights = {
        name: (torch.ones(shape) if len(shape) == 1 else torch.randn(shape, generator=generator) * DEVIATION).bfloat16()
        for name, shape in shapes(config)
    }
    safetensors.torch.save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    write_tokenizer(folder, config["vocab_size"])
    return weights


GGUF_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
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


def write_gguf(path: Path, weights: dict[str, Any], config: dict[str, Any], tokenizer: Path) -> None:
    """The weights in llama.cpp's format: matrices in bfloat16, vectors in float32."""
    gguf: Any = import_module("gguf")  # Any: not installed where types are checked
    import numpy as np

    kind = gguf.GGMLQuantizationType.BF16
    writer = gguf.GGUFWriter(path, config["model_type"])
    writer.add_name(path.parent.name)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_vocab_size(config["vocab_size"])
    bpe = json.loads(tokenizer.read_text())["model"]
    tokens = sorted(bpe["vocab"], key=bpe["vocab"].__getitem__)
    normal, control = gguf.TokenType.NORMAL, gguf.TokenType.CONTROL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")  # how ByteLevel cuts texts
    writer.add_token_list(tokens)
    writer.add_token_types([control if token in SPECIAL_TOKENS else normal for token in tokens])
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in bpe["merges"]])
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_add_bos_token(False)
    turned: dict[str, int] = {}
    if config["model_type"] == "llama":
        turned = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
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


def quantise(source: Path, target: Path, kind_name: str) -> None:
    """By llama.cpp, which chooses for each matrix what the name stands for."""
    library: Any = import_module("llama_cpp")  # Any: not installed where types are checked
    parameters = library.llama_model_quantize_default_params()
    parameters.ftype = getattr(library, f"LLAMA_FTYPE_MOSTLY_{kind_name}")
    status = library.llama_model_quantize(str(source).encode(), str(target).encode(), parameters)
    if status:
        raise SystemExit(f"llama.cpp cannot quantise {source} to {kind_name}: status {status}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder to write to")
    parser.add_argument("--shape", choices=SHAPES, default="reference-125m")
    parser.add_argument("--gguf", action="store_true", help="also write GGUF files for llama.cpp")
    arguments = parser.parse_args()
    config, source = SHAPES[arguments.shape], arguments.out / "bf16.gguf"
    weights = write_checkpoint(arguments.out / "hf", config)
    if arguments.gguf:
        write_gguf(source, weights, config, arguments.out / "hf" / "tokenizer.json")
        for stem, kind in (("q8", "Q8_0"), ("q4", "Q4_0"), ("q4_k_m", "Q4_K_M")):
            quantise(source, arguments.out / f"{stem}.gguf", kind)


if __name__ == "__main__":
    main()

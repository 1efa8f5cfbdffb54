"""Which tokens end a sequence, and the sampling defaults, from a file's metadata."""

from __future__ import annotations

from typing import Final

from ..config import Config
from ..generation import GenerationDefaults, eos_of, sampling_of
from .metadata import Metadata

END_KEYS: Final = ("eos_token_id", "eot_token_id", "eom_token_id")
# Control tokens that end a turn, whatever the keys say: llama.cpp stops at these too, since many files were converted
# before the keys existed.
END_TOKENS: Final = frozenset({
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>", "<|eom_id|>",
    "<EOT>", "<|return|>", "<|call|>", "<|END_OF_TURN_TOKEN|>", "<｜end▁of▁sentence｜>",
})  # fmt: skip
CONTROL: Final = 3  # tokenizer.ggml.token_type
SAMPLING: Final = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}


def generation_of(metadata: Metadata, vocab_size: int) -> GenerationDefaults:
    """Raises CheckpointError for ids beyond the vocabulary and values out of range."""
    ids = [metadata[key] for name in END_KEYS if (key := f"tokenizer.ggml.{name}") in metadata]
    config = Config({"eos_token_id": [*ids, *_control_tokens(metadata)]}, "tokenizer.ggml.")
    sampling = {
        name: metadata[key] for part, name in SAMPLING.items() if (key := f"general.sampling.{part}") in metadata
    }
    return GenerationDefaults(
        eos_token_ids=eos_of(config, vocab_size), sampling=sampling_of(Config(sampling, "general.sampling."))
    )


def _control_tokens(metadata: Metadata) -> list[int]:
    tokens, types = metadata.get("tokenizer.ggml.tokens"), metadata.get("tokenizer.ggml.token_type")
    if not isinstance(tokens, list) or not isinstance(types, list):
        return []
    pairs = enumerate(zip(tokens, types, strict=False))
    found = {token: index for index, (token, kind) in pairs if kind == CONTROL and token in END_TOKENS}
    if found.keys() >= {"<|return|>", "<|call|>"}:  # gpt-oss: there it ends one message of an answer
        found.pop("<|end|>", None)
    return list(found.values())

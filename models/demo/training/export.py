"""Write a network as a Hugging Face checkpoint folder. Each file is replaced atomically."""

import json
import os
from pathlib import Path

import safetensors.torch
from tokenizers import Tokenizer

from .network import Network, export_tensors, mistral_config
from .tokenizer import token_id

CHAT_TEMPLATE = Path(__file__).resolve().parent.parent / "chat_template.jinja"


def export(network: Network, tokenizer: Tokenizer, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    end_ids = [token_id(tokenizer, "<|im_end|>"), token_id(tokenizer, "<|endoftext|>")]
    template = CHAT_TEMPLATE.read_text()
    texts = {
        "config.json": _json(mistral_config(network.shape, end_ids)),
        "generation_config.json": _json({"do_sample": False, "eos_token_id": end_ids, "pad_token_id": end_ids[1]}),
        "tokenizer.json": tokenizer.to_str(pretty=False) + "\n",
        "tokenizer_config.json": _json(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "model_max_length": network.shape.context,
                "bos_token": None,
                "eos_token": "<|im_end|>",
                "pad_token": "<|endoftext|>",
                "additional_special_tokens": ["<|im_start|>", "<|im_end|>"],
                "clean_up_tokenization_spaces": False,
            }
        ),
        "chat_template.jinja": template,
    }
    for name, text in texts.items():
        partial = folder / f".{name}.partial"
        partial.write_text(text)
        os.replace(partial, folder / name)
    partial = folder / ".model.safetensors.partial"
    safetensors.torch.save_file(export_tensors(network), partial, metadata={"format": "pt"})
    partial.chmod(0o644)  # safetensors makes private files
    os.replace(partial, folder / "model.safetensors")


def _json(value: object) -> str:
    return json.dumps(value, indent=2) + "\n"

"""Random small encoders of every family, written by transformers, and what transformers answers on them.

torch and transformers are imported only where a case is made.
"""

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]
Options = dict[str, Any]  # keyword arguments of transformers' configuration classes
TOLERANCE = 1e-4
LENGTHS = (150, 3, 64, 101, 1)  # tokens: more than two blocks of keys, fewer than one, one exactly; beyond the window
WINDOW: Options = {"local_attention": 18, "global_attn_every_n_layers": 2}
ROTARY: Options = {
    "rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 500.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
    }
}

# name: (class of the configuration, of the model, settings, dtype of the file)
VARIANTS: dict[str, tuple[str, str, Options, str]] = {
    "bert": ("BertConfig", "BertModel", {}, "float32"),
    "bert-masked": ("BertConfig", "BertForMaskedLM", {"hidden_act": "gelu_new"}, "bfloat16"),
    "bert-scores": (
        "BertConfig", "BertForSequenceClassification", {"num_labels": 3, "problem_type": "multi_label_classification"},
        "float32",
    ),
    "bert-reranker": ("BertConfig", "BertForSequenceClassification", {"num_labels": 1}, "float32"),
    "xlm-roberta": ("XLMRobertaConfig", "XLMRobertaModel", {"type_vocab_size": 1, "pad_token_id": 1}, "float32"),
    "xlm-roberta-scores": (
        "XLMRobertaConfig", "XLMRobertaForSequenceClassification", {"num_labels": 1, "pad_token_id": 1}, "float16",
    ),
    "distilbert": ("DistilBertConfig", "DistilBertForSequenceClassification", {"num_labels": 2}, "float32"),
    "modernbert": ("ModernBertConfig", "ModernBertModel", {**WINDOW, **ROTARY}, "float32"),
    "modernbert-scores": (
        "ModernBertConfig", "ModernBertForSequenceClassification",
        {**WINDOW, "num_labels": 4, "classifier_pooling": "mean", "norm_bias": True, "attention_bias": True,
         "mlp_bias": True, "classifier_bias": True}, "float32",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class EncoderCase:
    """A checkpoint folder, texts, and what transformers makes of them."""

    variant: str
    folder: Path
    texts: list[list[int]]
    second: list[int]  # where each text's second part begins; 0: it has none
    hidden: list[FloatArray]
    scores: list[FloatArray]  # logits of a classifier; empty for others


def make_case(variant: str, folder: Path) -> EncoderCase:
    import torch
    import transformers

    draw = random.Random(variant)
    torch.manual_seed(draw.getrandbits(32))
    kind, architecture, options, dtype = VARIANTS[variant]
    heads = draw.choice([2, 3])
    sizes: Options = {"vocab_size": draw.randint(60, 200), "max_position_embeddings": 200, "pad_token_id": 0}
    if kind == "DistilBertConfig":
        sizes |= {"dim": heads * 16, "hidden_dim": 50, "n_layers": 2, "n_heads": heads}
    else:
        sizes |= {"hidden_size": heads * 16, "intermediate_size": draw.randint(30, 130), "num_hidden_layers": 4}
        sizes |= {"num_attention_heads": heads}
    config = getattr(transformers, kind)(**(sizes | options), attn_implementation="eager")
    model: Any = getattr(transformers, architecture)(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            spread = 0.25 if weight.ndim > 1 else 0.5
            weight.normal_(1.0 if "norm" in name.lower() and name.endswith("weight") else 0.0, spread)
    model.to(getattr(torch, dtype)).save_pretrained(folder)
    model.float()
    encoder = getattr(model, model.base_model_prefix, model)
    texts = [[draw.randrange(3, config.vocab_size) for _ in range(length)] for length in LENGTHS]
    types = getattr(config, "type_vocab_size", 1) > 1
    second = [len(text) // 2 if types and number % 2 == 0 else 0 for number, text in enumerate(texts)]
    hidden: list[FloatArray] = []
    scores: list[FloatArray] = []
    for text, start in zip(texts, second, strict=True):
        inputs = {"input_ids": torch.tensor([text])}
        if types:
            inputs["token_type_ids"] = torch.tensor([[int(0 < start <= place) for place in range(len(text))]])
        with torch.no_grad():
            hidden.append(encoder(**inputs).last_hidden_state[0].numpy())
            if "Sequence" in architecture:
                scores.append(model(**inputs).logits[0].numpy())
    return EncoderCase(variant, folder, texts, second, hidden, scores)

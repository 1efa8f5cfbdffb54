"""What the format's own library makes of random blocks of every type: writes golden.json.

    pip install gguf==0.19.0 && python -m tests.models.checkpoint.gguf.golden

Blocks are the bytes of SHAKE-256, so that they are the same everywhere. Scales among them are of every kind: random
bits of a float16 are infinite or NaN in 1 of 32, subnormal in as many.
"""

import hashlib
import json
from importlib import import_module
from pathlib import Path

import numpy as np
import numpy.typing as npt

ROWS, COLUMNS = 64, 2048
KINDS = (
    *("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"),
    *("IQ4_NL", "IQ4_XS", "MXFP4", "F16", "BF16"),
)
GOLDEN = Path(__file__).with_name("golden.json")


def random_bytes(kind: str, count: int) -> bytes:
    return hashlib.shake_256(kind.encode()).digest(count)


def digest(values: npt.NDArray[np.float32]) -> str:
    """Of the bits of float32 values; one NaN is as good as another."""
    bits = np.where(np.isnan(values), np.float32(np.nan), values).astype("<f4").tobytes()
    return hashlib.sha256(bits).hexdigest()


def main() -> None:
    gguf = import_module("gguf")  # not among the tests' packages
    golden: dict[str, dict[str, object]] = {}
    for kind in KINDS:
        number = gguf.GGMLQuantizationType[kind]
        elements, size = gguf.GGML_QUANT_SIZES[number]
        data = np.frombuffer(random_bytes(kind, ROWS * COLUMNS // elements * size), np.uint8)
        values = gguf.dequantize(data.reshape(ROWS, -1), number)
        assert values.shape == (ROWS, COLUMNS)
        golden[kind] = {"digest": digest(values), "first": [repr(float(value)) for value in values[0, ::200]]}
    GOLDEN.write_text(json.dumps(golden, indent=1) + "\n")


if __name__ == "__main__":
    main()

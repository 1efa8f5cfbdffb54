"""Makes an encoder's ONNX file with int8 weights, as ONNX Runtime's own tools quantise it, for loadtest/embeddings.

    python loadtest/peers/export_onnx.py FOLDER OUT.onnx

Runs where torch, transformers, onnx and onnxruntime are installed. Matrices are int8 for each output channel; their
inputs are quantised while it runs.
"""

import argparse
import importlib
import tempfile
from pathlib import Path
from typing import Any

INPUTS = ("input_ids", "attention_mask", "token_type_ids")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    torch: Any = importlib.import_module("torch")  # Any: libraries that are not installed where types are checked
    transformers: Any = importlib.import_module("transformers")
    quantization: Any = importlib.import_module("onnxruntime.quantization")
    encoder = transformers.AutoModel.from_pretrained(arguments.folder, attn_implementation="eager").eval()

    class Hidden(torch.nn.Module):  # type: ignore[misc]  # the module's type is not known
        def __init__(self) -> None:
            super().__init__()
            self.encoder = encoder

        def forward(self, *inputs: Any) -> Any:  # tensors
            return self.encoder(**dict(zip(INPUTS, inputs, strict=True))).last_hidden_state

    ones = torch.ones((2, 8), dtype=torch.int64)
    axes = {name: {0: "texts", 1: "tokens"} for name in (*INPUTS, "hidden")}
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / "float32.onnx"
        torch.onnx.export(
            Hidden(), (ones, ones, 0 * ones), plain, input_names=list(INPUTS), output_names=["hidden"],
            dynamic_axes=axes, opset_version=18, dynamo=False,
        )  # fmt: skip
        quantization.quantize_dynamic(plain, arguments.out, per_channel=True, weight_type=quantization.QuantType.QInt8)


if __name__ == "__main__":
    main()

"""Makes a folder with the engines that Triolet is compared with and the reference model in each one's format.

    python setup.py FOLDER [--engines llama.cpp openvino ctranslate2] [--shape SHAPE | --model CHECKPOINT]

FOLDER gets `venv` with the engines, `hf` with a checkpoint as Hugging Face writes it (a Llama of 125 million random
parameters unless --shape names another shape or --model a checkpoint), and what each engine reads: `q8.gguf`,
`q4.gguf`, `q4_k_m.gguf`, `bf16.gguf`; `ov-int8`, `ov-int4`; `ct2-int8`. Takes about ten minutes, most of them for
compiling llama.cpp for this machine's own instructions, which needs a C++ compiler; and 3 GB of disk, most of them
torch, which converts and measures nothing.
Run again, it goes on with what is missing. At the end it prints the options for `triolet bench peers`, a line for
every engine and precision that is there.
"""

import argparse
import os
import shlex
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
REFERENCE_MODEL = HERE / "reference_model.py"
SHAPES = ["reference-125m", "llama-3.2-1b", "qwen3-0.6b"]  # as there
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"  # torch without CUDA
CONVERTING = ["torch", "transformers", "gguf"]
# An engine's packages, and what they need to convert a checkpoint.
PACKAGES = {
    "llama.cpp": ["llama-cpp-python"],
    "openvino": ["openvino-genai", "optimum-intel", "nncf"],
    "ctranslate2": ["ctranslate2"],
}
NATIVE = {"CMAKE_ARGS": "-DGGML_NATIVE=ON"}
PRECISIONS = {"llama.cpp": ["q8", "q4", "q4_k_m", "bf16"], "openvino": ["int8", "int4"], "ctranslate2": ["int8"]}
READS = {"llama.cpp": "{}.gguf", "openvino": "ov-{}", "ctranslate2": "ct2-{}"}
OPENVINO_INT4 = ["--sym", "--group-size", "128", "--ratio", "1.0"]


def run(*command: str | Path, **environment: str) -> None:
    print("+", shlex.join(map(str, command)), file=sys.stderr, flush=True)
    subprocess.run([str(word) for word in command], check=True, env={**os.environ, **environment})


def install(venv: Path, engines: list[str], torch_index: str) -> None:
    if not (venv / "bin" / "python").exists():
        run(sys.executable, "-m", "venv", venv)
    pip = [str(venv / "bin" / "python"), "-m", "pip", "install", "--quiet"]
    if torch_index:
        pip += ["--extra-index-url", torch_index]
    run(*pip, *CONVERTING)
    for engine in engines:
        run(*pip, *PACKAGES[engine], **NATIVE)


def convert(folder: Path, bin: Path, engines: list[str], shape: str, model: Path | None) -> None:
    """Whatever an engine reads and is not there yet."""
    gguf = ["--gguf"] if "llama.cpp" in engines else []
    if model is None and not (folder / ("q4_k_m.gguf" if gguf else "hf")).exists():
        run(bin / "python", REFERENCE_MODEL, folder, "--shape", shape, *gguf)
    elif model is not None and not (folder / "hf").exists():
        (folder / "hf").symlink_to(model.resolve())
    source = folder / "hf"
    if "openvino" in engines:
        for precision, options in (("int8", []), ("int4", OPENVINO_INT4)):
            target = folder / f"ov-{precision}"
            if not target.exists():
                export = ["export", "openvino", "--task", "text-generation-with-past", "--weight-format", precision]
                run(bin / "optimum-cli", *export, *options, "--model", source, target)
    if "ctranslate2" in engines and not (folder / "ct2-int8").exists():
        run(
            bin / "ct2-transformers-converter", "--model", source, "--output_dir", folder / "ct2-int8",
            "--quantization", "int8",
        )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--engines", nargs="+", choices=PACKAGES, default=list(PACKAGES))
    parser.add_argument("--shape", choices=SHAPES, default="reference-125m", help="of random weights")
    parser.add_argument(
        "--model", type=Path, help="a checkpoint instead; llama.cpp then wants its .gguf files from you"
    )
    parser.add_argument("--torch-index", default=TORCH_INDEX, help="where torch without CUDA is; '' for pip's own")
    parser.add_argument("--only-print", action="store_true", help="only the options for `triolet bench peers`")
    arguments = parser.parse_args()
    folder: Path = arguments.folder
    bin = folder.resolve() / "venv" / "bin"
    if not arguments.only_print:
        folder.mkdir(parents=True, exist_ok=True)
        install(folder / "venv", arguments.engines, arguments.torch_index)
        convert(folder, bin, arguments.engines, arguments.shape, arguments.model)
    for engine in arguments.engines:
        for precision in PRECISIONS[engine]:
            if not (folder / READS[engine].format(precision)).exists():
                continue
            command = [str(bin / "python"), str(HERE), engine, str(folder.resolve()), "--precision", precision]
            print(f"--peer {shlex.quote(f'{engine} {precision}={shlex.join(command)}')}")


if __name__ == "__main__":
    main()

"""Measures one other engine in one precision, for `triolet bench peers`: run as a folder, by that engine's Python.

    PYTHON loadtest/peers llama.cpp FOLDER --precision q8 <<< '{"threads": 2, "cases": [CASE, …]}'

A CASE is {"name", "prompt_tokens", "output_tokens", "batch", "repeats"}: `batch` sequences submitted together, each of
the token ids 10, 11, … and each generating greedily, whatever ends a sequence ignored. Written to standard output, a
JSON line each: first what is measured ({"engine", "precision", "bits", "versions"}), then for every repetition
{"case", "times"}, times[sequence][i] being the seconds from submission until token i of it was there. What is made of
the times is the caller's business: it does the same with its own.

FOLDER is what setup.py made. Nothing of Triolet is imported: this runs where only the other engine is installed.
"""

import argparse
import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

ENGINES = {"llama.cpp": "peer_llama_cpp", "openvino": "peer_openvino", "ctranslate2": "peer_ctranslate2"}
FIRST_TOKEN_ID = 10  # as `triolet bench offline`: beyond the special tokens that vocabularies begin with
WARM_UP_PROMPT = 64  # tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", choices=ENGINES)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--precision", required=True)
    arguments = parser.parse_args()
    module: Any = import_module(ENGINES[arguments.engine])  # Any: found by its file's name, beside this one
    if arguments.precision not in module.BITS:
        parser.error(f"--precision {arguments.precision}: {arguments.engine} is measured in {', '.join(module.BITS)}")
    request = json.load(sys.stdin)
    engine = module.open_engine(arguments.folder, arguments.precision, request["threads"])
    write({
        "engine": arguments.engine, "precision": arguments.precision, "bits": module.BITS[arguments.precision],
        "versions": engine.versions,
    })  # fmt: skip
    for case in request["cases"]:
        shorter = {"prompt_tokens": min(WARM_UP_PROMPT, case["prompt_tokens"]), "output_tokens": 2}
        generate(engine, {**case, **shorter})
        for _ in range(case["repeats"]):
            write({"case": case["name"], "times": generate(engine, case)})


def generate(engine: Any, case: dict[str, Any]) -> list[list[float]]:  # Any: an Engine of one of the modules; JSON
    prompt = list(range(FIRST_TOKEN_ID, FIRST_TOKEN_ID + case["prompt_tokens"]))
    times: list[list[float]] = engine.generate(prompt, case["batch"], case["output_tokens"])
    counts = {len(each) for each in times}
    if counts != {case["output_tokens"]}:
        sys.exit(f"asked for {case['output_tokens']} tokens a sequence, got {sorted(counts)}")
    return [[round(time, 6) for time in each] for each in times]


def write(line: dict[str, Any]) -> None:
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()

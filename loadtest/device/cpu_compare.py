"""Compares `triolet bench offline` with another CPU engine on one checkpoint, in turn: both meet the same machine.

    python -m triolet.loadtest.device.cpu_compare --model OUT/hf --peer "PYTHON SCRIPT OUT llama.cpp" --out FOLDER

Each turn runs Triolet in bfloat16 and int8 on two loads, then the peer. The peer's command prints one JSON line per
precision with the keys `engine`, `precision`, `prefill_tok_s`, `decode_tok_s_b1` and `decode_tok_s_b16`, measured with
the same prompts (token ids 10, 11, …); it is told THREADS and ROUNDS in its environment. Figures are medians over the
turns; only ratios of one run hold, because the machine's memory is shared with whatever else runs on it. Written:
<date>-cpu-<name>.json with every turn, and the same as a table in .md. Run it on an otherwise idle machine.
"""

import argparse
import datetime
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

LOADS = {"one": (512, 128, 1), "sixteen": (32, 64, 16)}  # prompt tokens, output tokens, sequences
PRECISIONS = {"bfloat16": ["--dtype", "bfloat16"], "int8": ["--quantize", "int8"]}
# A peer's precision beside ours: the same bits a weight.
SAME_BITS = {"bf16": "bfloat16", "bfloat16": "bfloat16", "q8": "int8", "int8": "int8"}
FIGURES = {
    "prefill_tok_s": "prefill of 512, tokens/s",
    "decode_tok_s_b1": "decode, one sequence after 512, tokens/s",
    "decode_tok_s_b16": "sixteen sequences 32 + 64, new tokens/s",
}

Row = dict[str, Any]  # Any: JSON


def run_triolet(model: Path, precision: str, threads: int, rounds: int) -> tuple[Row, Row]:
    """One turn of ours: the row of figures, and what `bench offline` printed for each load."""
    printed: Row = {}
    for name, (prompt, output, batch) in LOADS.items():
        command = [str(Path(sys.executable).with_name("triolet")), "bench", "offline", str(model), "--json"]
        load = ["--prompt-tokens", str(prompt), "--output-tokens", str(output), "--batch", str(batch)]
        options = ["--threads", str(threads), "--rounds", str(rounds), *PRECISIONS[precision]]
        done = subprocess.run([*command, *load, *options], stdout=subprocess.PIPE, text=True, check=True)
        printed[name] = json.loads(done.stdout)
    row = {
        "engine": "triolet",
        "precision": precision,
        "prefill_tok_s": printed["one"]["prefill_tok_s"],
        "decode_tok_s_b1": printed["one"]["decode_tok_s"],
        "decode_tok_s_b16": printed["sixteen"]["output_tok_s"],
    }
    return row, printed


def run_peer(command: list[str], threads: int, rounds: int) -> list[Row]:
    """One turn of the peer's."""
    environment = {**os.environ, "THREADS": str(threads), "ROUNDS": str(rounds)}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def medians(rows: list[Row]) -> list[Row]:
    """One row per engine and precision: the median of each figure over the turns."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["engine"], row["precision"]), []).append(row)
    return [
        {"engine": engine, "precision": precision}
        | {figure: round(statistics.median(row[figure] for row in group), 1) for figure in FIGURES}
        for (engine, precision), group in groups.items()
    ]


def ratios(rows: list[Row]) -> list[Row]:
    """Ours over the peer's at the same bits: the median over turns of each turn's ratio, and its range."""
    result: list[Row] = []
    ours = {(row["turn"], row["precision"]): row for row in rows if row["engine"] == "triolet"}
    theirs = [row for row in rows if row["engine"] != "triolet" and row["precision"] in SAME_BITS]
    for engine, precision in dict.fromkeys((row["engine"], row["precision"]) for row in theirs):
        turns = [row for row in theirs if (row["engine"], row["precision"]) == (engine, precision)]
        entry: Row = {"ours": SAME_BITS[precision], "peer": f"{engine} {precision}"}
        for figure in FIGURES:
            values = [ours[row["turn"], SAME_BITS[precision]][figure] / row[figure] for row in turns]
            entry[figure] = {"median": statistics.median(values), "lowest": min(values), "highest": max(values)}
        result.append(entry)
    return result


def machine() -> Row:
    """What the figures belong to."""
    info = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    pairs = (line.partition(":") for line in info.split("\n\n")[0].splitlines())
    fields = {name.strip(): value.strip() for name, _, value in pairs}
    wanted = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8", "amx_bf16", "avx_vnni")
    flags = fields.get("flags", "").split()
    return {
        "cpu": fields.get("model name", platform.processor()),
        "instructions": [flag for flag in wanted if flag in flags],
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
    }


def table(result: Row) -> str:
    """The result as a page."""
    about = result["machine"]
    lines = [
        f"# {result['name']}: Triolet beside {result['peer_about']}",
        "",
        f"{result['date']}, {about['cpu']} ({', '.join(about['instructions'])}), {result['threads']} threads, "
        f"{about['memory_gib']} GiB, {about['system']}. Medians of {result['turns']} turns, engines in turn; "
        f"load average before the turns: {', '.join(str(load) for load in result['load_averages'])}.",
        "",
        f"    {result['command']}",
        "",
        f"| engine | precision | {' | '.join(FIGURES.values())} |",
        f"|---|---|{'---:|' * len(FIGURES)}",
    ]
    lines += [
        f"| {row['engine']} | {row['precision']} | {' | '.join(f'{row[name]:,}' for name in FIGURES)} |"
        for row in result["medians"]
    ]
    lines += ["", "Ours over the peer's at the same bits, median of the turns (lowest to highest):", ""]
    lines += [f"| ours | peer | {' | '.join(FIGURES.values())} |", f"|---|---|{'---:|' * len(FIGURES)}"]
    for row in result["ratios"]:
        found = (row[name] for name in FIGURES)
        cells = (f"{ratio['median']:.2f} ({ratio['lowest']:.2f} to {ratio['highest']:.2f})" for ratio in found)
        lines.append(f"| {row['ours']} | {row['peer']} | {' | '.join(cells)} |")
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    return "\n".join([*lines, "", f"Versions: {versions}.", ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="checkpoint folder for Triolet")
    parser.add_argument("--peer", required=True, help="command that measures the other engine")
    parser.add_argument("--peer-about", default="a peer", help="its name, version and build, for the record")
    parser.add_argument("--name", default="125m", help="of the checkpoint, for file names")
    parser.add_argument("--out", type=Path, default=Path("loadtest/results"))
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=2, help="of each engine in a turn")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    arguments = parser.parse_args()

    rows: list[Row] = []
    printed: list[Row] = []
    loads: list[float] = []
    started = time.monotonic()
    for turn in range(arguments.turns):
        loads.append(round(os.getloadavg()[0], 2))
        for precision in PRECISIONS:
            row, log = run_triolet(arguments.model, precision, arguments.threads, arguments.rounds)
            rows.append({"turn": turn, **row})
            printed.append({"turn": turn, "precision": precision, **log})
        rows += [
            {"turn": turn, **row} for row in run_peer(shlex.split(arguments.peer), arguments.threads, arguments.rounds)
        ]
        print(f"turn {turn + 1} of {arguments.turns}, {time.monotonic() - started:.0f} s", file=sys.stderr)

    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    result: Row = {
        "name": arguments.name,
        "date": date,
        "peer_about": arguments.peer_about,
        "command": "python -m triolet.loadtest.device.cpu_compare --model HF --peer PEER "
        f"--turns {arguments.turns} --rounds {arguments.rounds} --threads {arguments.threads}",
        "machine": machine(),
        "versions": printed[0]["one"]["versions"],
        "threads": arguments.threads,
        "turns": arguments.turns,
        "load_averages": loads,
        "medians": medians(rows),
        "ratios": ratios(rows),
        "rows": rows,
        "printed": printed,
    }
    arguments.out.mkdir(parents=True, exist_ok=True)
    stem = arguments.out / f"{date}-cpu-{arguments.name}"
    stem.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n")
    page = table(result)
    stem.with_suffix(".md").write_text(page)
    print(page)


if __name__ == "__main__":
    main()

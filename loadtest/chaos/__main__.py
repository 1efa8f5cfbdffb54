"""Streams through workers that are killed, crash and hang: `python -m triolet.loadtest.chaos --out FILE.json`.

A server of the bundled model (or `--model`) gets troubles one after the other, each once the streams go on again.
Meanwhile clients read their streams, others leave in the middle, and somebody asks for the server's health. Afterwards
each answer must be what it was without troubles, each stream must have ended once, and nothing may be left.

Standard output gets the result as JSON; `--out` writes it, and a picture beside it (FILE.html).
"""

import argparse
import json
import re
import sys
import tempfile
from pathlib import Path

import trio

from ..client.dial import read_url
from ..machine import machine, versions
from ..process import serving
from .page import page
from .run import ChaosResult, Plan, run_chaos

_READY_AGAIN = re.compile(rb"ready again after ([\d.]+) s")


def main() -> None:
    plan = Plan()
    parser = argparse.ArgumentParser(
        prog="python -m triolet.loadtest.chaos",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--streams", type=int, default=plan.streams)
    parser.add_argument("--tokens", type=int, default=plan.tokens, help="of each answer")
    parser.add_argument("--troubles", type=int, default=plan.each, help="of each kind: kill, crash, hang")
    parser.add_argument("--leavers", type=int, default=plan.leavers, help="clients that leave in the middle")
    parser.add_argument("--seed", type=int, default=plan.seed)
    parser.add_argument("--model", default="", help="a checkpoint; the bundled one if left out")
    parser.add_argument("--out", type=Path, help="where to write the result")
    options = parser.parse_args()
    plan = Plan(
        streams=options.streams,
        tokens=options.tokens,
        each=options.troubles,
        leavers=options.leavers,
        seed=options.seed,
    )
    result = run(plan, options.model)
    text = json.dumps(result.report(machine(), versions("trio", "msgspec", "numba")), indent=1)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")
        options.out.with_suffix(".html").write_text(page(result))
    raise SystemExit("; ".join(result.faults()) or None)


def run(plan: Plan, model: str = "") -> ChaosResult:
    with tempfile.TemporaryFile() as errors, tempfile.TemporaryDirectory() as data:
        module = "triolet.loadtest.chaos.troubled_server"
        command = [sys.executable, "-m", module, *([model] if model else []), "--port", "0", "--data", data]
        with serving([*command, "--max-running", str(plan.rows)], errors) as server:
            result = trio.run(run_chaos, read_url(f"http://127.0.0.1:{server.port}"), server.pid, plan)
        errors.seek(0)
        result.load_seconds = [float(seconds) for seconds in _READY_AGAIN.findall(errors.read())]
    return result


if __name__ == "__main__":
    main()

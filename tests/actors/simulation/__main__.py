"""`python -m tests.actors.simulation --seed N --count M [--house | --web] [--plant NAME]`: live through seeds.

A seed has one digest: whoever replays it sees the same messages at the same times.
"""

import argparse
import sys
import time
import traceback
from contextlib import nullcontext

from ...web.simulation.life import simulate_web
from .house import simulate_house
from .plants import PLANTS, planted
from .world import simulate


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.actors.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=1, help="how many seeds")
    parser.add_argument("--plant", choices=sorted(PLANTS), help="plant this bug first")
    parser.add_argument("--house", action="store_true", help="with the real gateway, detokenizer and outboxes")
    parser.add_argument("--web", action="store_true", help="the whole server, with its clients")
    options = parser.parse_args()
    live = simulate_web if options.web else simulate_house if options.house else simulate
    began, seconds = time.process_time(), 0.0
    for seed in range(options.seed, options.seed + options.count):
        try:
            with planted(options.plant, seed) if options.plant else nullcontext():
                outcome = live(seed)
        except (Exception, BaseExceptionGroup):
            traceback.print_exc()
            print(f"seed {seed} failed; replay it with --seed {seed}", file=sys.stderr)
            return 1
        seconds += outcome.seconds
        ends = ", ".join(f"{count} {end}" for end, count in sorted(outcome.ends.items()))
        print(
            f"seed {seed} digest {outcome.digest} steps {outcome.steps} preemptions {outcome.preemptions} "
            f"copies {outcome.copies}: {ends}"
        )
    ratio = seconds / (time.process_time() - began)
    print(f"{options.count} lives of {seconds / 3600:.1f} hours in all, at {ratio:,.0f} times real time of a core")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Runs the deterministic simulator: `python tests/simulation/run.py --seeds 2000`.

A failing seed prints what broke, its trace, and the command that replays it exactly.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from penstock_sim.world import History, simulate

TRACE_LINES = 60


def main() -> int:
    """0: all seeds hold; 1: some do not."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--seed", type=int, help="only this one")
    parser.add_argument("--trace", action="store_true", help="print every event of it")
    parser.add_argument("--keep-going", action="store_true", help="do not stop at a failure")
    options = parser.parse_args()
    if options.seed is not None:
        return report(simulate(options.seed, traced=options.trace), everything=True)
    started, totals, failures = time.monotonic(), [0] * 8, 0
    for seed in range(options.first, options.first + options.seeds):
        history = simulate(seed)
        for index, count in enumerate(
            (
                history.steps,
                history.commits,
                history.elections,
                history.truncations,
                history.acked,
                history.group_commits,
                history.rebalances,
                history.journals,
            )
        ):
            totals[index] += count
        if history.violation is not None:
            failures += 1
            report(simulate(seed, traced=True), everything=False)
            if not options.keep_going:
                break
    seconds = time.monotonic() - started
    steps, commits, elections, truncations, acked, group_commits, rebalances, journals = totals
    print(
        f"{options.seeds} seeds from {options.first}, {failures} failed, {seconds:.1f} s: "
        f"{steps} steps, {commits} commits, {elections} leaderships, {truncations} truncations, "
        f"{acked} batches acknowledged, {group_commits} group commits, {rebalances} rebalances, "
        f"{journals} journals"
    )
    return 1 if failures else 0


def report(history: History, *, everything: bool) -> int:
    """Prints one history; 1 if it failed."""
    lines = history.trace if everything else history.trace[-TRACE_LINES:]
    for line in lines:
        print(line)
    print(
        f"seed {history.seed}: {history.steps} steps, {history.commits} commits, "
        f"{history.elections} leaderships, {history.truncations} truncations, {history.acked} "
        f"acknowledged, {history.group_commits} group commits, {history.rebalances} rebalances, "
        f"{history.journals} journals, "
        f"fingerprint {history.fingerprint:016x}"
    )
    if history.violation is None:
        return 0
    print(f"FAILED: {history.violation}")
    print(f"replay: python tests/simulation/run.py --seed {history.seed} --trace")
    return 1


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.execve(
            sys.executable, [sys.executable, *sys.argv], {**os.environ, "PYTHONHASHSEED": "0"}
        )
    sys.exit(main())

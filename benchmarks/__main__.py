"""`make bench`: every benchmark in turn; lines go to the terminal and to benchmarks/results/."""

import argparse
import subprocess
import sys
from pathlib import Path

SCRIPTS = (
    "encoding",
    "throughput",
    "failover",
    "catch_up",
    "spark_source",
    "idle",
    "groups",
    "transactions",
    "latency",
    "security",
    "attacks",
    "memory",
    "producer_table",
    "store_layout",
    "verify_memory",
    "compaction",
    "balance",
    "scale",
    "moves",
    "damage",
    "rolls",
    "at_rest",
    "migration",
)
RESULTS = Path(__file__).parent / "results"


def run(script: str) -> bool:
    """Runs one script, keeping its lines as results/<script>.jsonl; False if it failed."""
    print(f"== {script}", file=sys.stderr, flush=True)
    command = [sys.executable, "-m", f"benchmarks.{script}"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    lines = []
    try:
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line)
    except KeyboardInterrupt:
        process.wait(timeout=60)
        raise
    if process.wait() != 0:
        return False
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{script}.jsonl").write_text("".join(lines))
    return True


def main() -> int:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--only", action="append", choices=SCRIPTS)
    args = parser.parse_args()
    try:
        failed = [script for script in args.only or SCRIPTS if not run(script)]
    except KeyboardInterrupt:
        return 130
    for script in failed:
        print(f"{script} failed; its results were left as they were", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

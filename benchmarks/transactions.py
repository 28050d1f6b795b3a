"""What transactions cost: producing, committing, reading, pipes, failures, Spark, at rest.

Three brokers, replication 3, acks=all. Where Kafka is the peer, three brokers of Kafka 4.3 with
confluent-kafka's transactional producer run on the same machine at the same time; both take turns
for several rounds, and a ratio is the median of the rounds' ratios. The peer's label says which
transactions it speaks. What else is compared took turns in the same way.
"""

import argparse
import sys
from collections.abc import Callable
from contextlib import closing
from functools import partial

from benchmarks.common import run_parts
from benchmarks.transaction_deaths import deaths
from benchmarks.transaction_idle import idle
from benchmarks.transaction_pipe import pipe
from benchmarks.transaction_produce import commit, produce, single
from benchmarks.transaction_reading import reading
from benchmarks.transaction_sink import sink
from benchmarks.transaction_stage import QUICK, Sizes, Stage
from benchmarks.transaction_unused import unused

WITH_KAFKA: dict[str, Callable[[Stage], None]] = {
    "produce": produce,
    "commit": commit,
    "single": single,
    "pipe": pipe,
}
"""Together, so that Kafka is started once."""
ALONE: dict[str, Callable[[Stage], None]] = {
    "reading": reading,
    "unused": unused,
    "deaths": deaths,
    "spark": sink,
    "idle": idle,
}
PARTS = WITH_KAFKA | ALONE
EXAMPLES = """parts: {parts}

examples:
  python -m benchmarks.transactions                            all, in about 15 minutes
  python -m benchmarks.transactions --only commit --only idle  two of the parts
  python -m benchmarks.transactions --quick --no-kafka         shows only that it works
"""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog=EXAMPLES.format(parts=", ".join(PARTS)),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--only", action="append", choices=PARTS, metavar="PART", help="default: all parts"
    )
    parser.add_argument("--quick", action="store_true", help="small: shows only that it works")
    parser.add_argument("--no-kafka", action="store_true", help="only ours")
    args = parser.parse_args()
    wanted = [name for name in PARTS if not args.only or name in args.only]
    with closing(Stage(QUICK if args.quick else Sizes(), with_kafka=not args.no_kafka)) as stage:
        return run_parts({name: partial(_run, name, stage) for name in wanted})


def _run(name: str, stage: Stage) -> None:
    if name in ALONE:
        stage.close()
    PARTS[name](stage)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)

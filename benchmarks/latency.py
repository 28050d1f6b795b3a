"""What small appends cost and how long they take: alone, pipelined, end to end, commits.

Three brokers, replication 3, acks=all, records of 100 B. All sides of a part run on the same
machine at the same time and take turns for several rounds; a ratio is the median of the rounds'
ratios. Clients are processes of their own, so that brokers' and clients' processor time can be
told apart. The sides, each on free loopback ports:

    ours      three brokers and a controller; the controller's time is not counted
    Kafka     4.3, three brokers that are controllers too, driven by confluent-kafka
    NATS      JetStream, streams of three replicas in files, driven by nats-py; a majority of
              the replicas acknowledges, where ours and Kafka wait for all in sync
    bare      the messages alone, in grpc.aio (bare_pattern.py): no log, no disk, nothing merged

Everybody is warm before anything is measured: a broker on a JVM needs about 20 seconds of work
until its compiler is done, ours and the others a few. Kafka's brokers get them before each part
(`Sizes.kafka_warm_s`), with the part's own load. A cold peer would flatter us. Each client warms
itself up as well before each measurement, connections and all (`Sizes.settle_s`).

A lone append's client waits for one record's acknowledgement before it sends the next. N clients
are N producers, as N services or devices have them: nobody but the brokers can merge what they
send. What tasks that share a producer gain by its batching is a figure of its own.
"""

import argparse
import sys
from collections.abc import Callable
from contextlib import closing
from functools import partial

from benchmarks.common import run_parts
from benchmarks.latency_appends import lone, pipelined
from benchmarks.latency_commits import commits
from benchmarks.latency_end_to_end import end_to_end
from benchmarks.latency_stage import QUICK, Sizes, Stage

PARTS: dict[str, Callable[[Stage], None]] = {
    "lone": lone,
    "pipelined": pipelined,
    "end-to-end": end_to_end,
    "commits": commits,
}
EXAMPLES = """parts: {parts}

examples:
  python -m benchmarks.latency                              all, in about 15 minutes
  python -m benchmarks.latency --only lone --only commits   two of the parts
  python -m benchmarks.latency --quick --no-kafka --no-nats shows only that it works
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
    parser.add_argument("--no-kafka", action="store_true", help="without Kafka")
    parser.add_argument("--no-nats", action="store_true", help="without NATS JetStream")
    args = parser.parse_args()
    sizes = QUICK if args.quick else Sizes()
    wanted = {name: PARTS[name] for name in PARTS if not args.only or name in args.only}
    with closing(Stage(sizes, with_kafka=not args.no_kafka, with_nats=not args.no_nats)) as stage:
        return run_parts({name: partial(measure, stage) for name, measure in wanted.items()})


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)

"""How long a plan takes: 1,000 partitions on 10 brokers, and 10,000 on 50.

Pure computing, so each figure is the processor time of this process, the median of a few runs. The
layout is harder than a real one: replicas at random, sizes that differ by a factor of 1,000, racks
of unequal size, and a fifth of the brokers without any for the wishes about new or leaving ones.
"""

import argparse
import random
import sys
import time
from collections.abc import Callable
from functools import partial

from benchmarks.common import figure, median, progress, run_parts
from penstock.core.balance import (
    Balance,
    BrokerFacts,
    Drain,
    Factor,
    Facts,
    Leaders,
    PartitionFacts,
    Plan,
    Spread,
    Wish,
    plan,
)
from penstock.core.types import BrokerId, TopicPartition

GIB = 1 << 30
MIB = 1 << 20
TOPIC_PARTITIONS = 50
LIMITS_S = {(1_000, 10): 0.2, (10_000, 50): 5.0}


def cluster(partitions: int, brokers: int, *, holding: int, seed: int = 1) -> Facts:
    """Three racks, replicas at random on the first `holding` brokers, one per rack."""
    draw = random.Random(seed)
    members = tuple(
        BrokerFacts(
            id=BrokerId(at), rack=f"rack-{at % 3}", disk_bytes=100_000 * GIB,
            free_bytes=90_000 * GIB, fresh=at >= holding,
        )
        for at in range(brokers)
    )  # fmt: skip
    racks = [[one.id for one in members[:holding] if one.id % 3 == rack] for rack in range(3)]
    names = [
        TopicPartition(f"topic-{at // TOPIC_PARTITIONS}", at % TOPIC_PARTITIONS)
        for at in range(partitions)
    ]
    placed = []
    for name in names:
        replicas = [draw.choice(rack) for rack in racks]
        draw.shuffle(replicas)
        placed.append(
            PartitionFacts(
                partition=name, replicas=tuple(replicas), isr=tuple(replicas), leader=replicas[0],
                size_bytes=int(MIB * 10 ** draw.uniform(0, 3)),
                bytes_per_second=int(10 ** draw.uniform(2, 6)),
            )
        )  # fmt: skip
    return Facts(brokers=members, partitions=tuple(placed), copy_rate=40 * MIB)


def measure(partitions: int, brokers: int, rounds: int) -> None:
    """One figure per wish."""
    full = cluster(partitions, brokers, holding=brokers)
    grown = cluster(partitions, brokers, holding=brokers - brokers // 5)
    leaving = tuple(BrokerId(at) for at in range(brokers - brokers // 5, brokers))
    cases: dict[str, tuple[Facts, Wish]] = {
        "drain a fifth": (full, Drain(leaving)),
        "spread onto a fifth": (grown, Spread()),
        "balance, with a fifth empty": (grown, Balance()),
        "balance, replicas at random": (full, Balance()),
        "factor 3 to 4": (full, Factor("topic-0", 4)),
        "leaders": (full, Leaders()),
    }
    for name, (facts, wish) in cases.items():
        made = plan(facts, wish)
        assert isinstance(made, Plan), made.reason
        took = median([_processor_s(partial(plan, facts, wish)) for _ in range(rounds)])
        size = f"{partitions:,} partitions x {brokers} brokers"
        limit = LIMITS_S[partitions, brokers]
        progress(f"{name}: {len(made.moves)} moves, {made.before} -> {made.after}")
        figure(f"plan: {name}, {size}", took, "s", "limit", limit, goal="ratio at most 1")


def _processor_s(run: Callable[[], object]) -> float:
    began = time.process_time()
    run()
    return time.process_time() - began


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="the smaller cluster, once")
    args = parser.parse_args()
    sizes, rounds = [*LIMITS_S], args.rounds
    if args.quick:
        sizes, rounds = sizes[:1], 1
    parts: dict[str, Callable[[], None]] = {
        f"{partitions} x {brokers}": partial(measure, partitions, brokers, rounds)
        for partitions, brokers in sizes
    }
    return run_parts(parts)


if __name__ == "__main__":
    sys.exit(main())

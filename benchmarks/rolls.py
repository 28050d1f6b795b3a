"""How many steps a roll takes when brokers restart together, over one by one (ADR 79).

Computed by the operator's own rule, from replicas that the controller's placement has put there. A
step lasts as long as its slowest broker: with starts that take equally long, the ratio of steps is
that of the times. No Kubernetes is asked.
"""

from benchmarks.common import figure
from penstock.core.control.placement import Load, place
from penstock.core.manifest.upkeep import Parallel
from penstock.core.types import BrokerId
from penstock_operator.model import BrokerFacts, BrokerState, PartitionState
from penstock_operator.plan.roll_groups import sharing

BROKERS = 9
RACKS = 3
PARTITIONS = 100
FACTOR = 3
MIN_ISR = 2


def facts() -> BrokerFacts:
    """All replicas in sync, on brokers that serve."""
    racks = {BrokerId(each): f"rack-{each % RACKS}" for each in range(BROKERS)}
    placed = place(racks, PARTITIONS, FACTOR, Load())
    partitions = tuple(
        PartitionState("flights", at, replicas[0], replicas, replicas, MIN_ISR)
        for at, replicas in enumerate(placed)
    )
    brokers: dict[int, BrokerState] = {
        each: BrokerState(each, "", True, rack) for each, rack in racks.items()
    }
    return BrokerFacts("id", True, brokers, partitions, {})


def steps(found: BrokerFacts, parallel: Parallel) -> int:
    """Of a roll of all of them."""
    may_share = sharing(found, (), parallel.of(BROKERS))
    return len(may_share.groups([*found.brokers], is_first=True))


def main() -> None:
    found = facts()
    serial = steps(found, Parallel(brokers=1))
    for parallel, name, goal in (
        (Parallel(brokers=3), "3 at a time", "ratio ≤ 0.45"),
        (Parallel(), "as many at a time as by default", ""),
    ):
        figure(
            f"a roll of {BROKERS} brokers in {RACKS} racks, {name}",
            steps(found, parallel),
            "steps",
            "one by one",
            serial,
            goal=goal,
        )


if __name__ == "__main__":
    main()

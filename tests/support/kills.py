"""Rounds of kills under a load: some brokers die at once, and come back once the rest goes on."""

from collections.abc import Callable, Sequence

from support.cluster import Cluster
from support.load import Load

Victims = Callable[[Cluster, Load], list[int]]
"""Whom to kill: broker ids."""


def everybody(cluster: Cluster, _load: Load) -> list[int]:
    return list(cluster.brokers)


def kill_in_rounds(
    cluster: Cluster, load: Load, victims: Victims, *, rounds: int, topics: Sequence[str]
) -> None:
    """Kills the victims of each round and starts them again.

    A round begins when all `topics` are in sync, so that nothing acknowledged is on the victims
    alone. Those who are left, if any, and then all together acknowledge on every partition.
    """
    for _ in range(rounds):
        for topic in topics:
            cluster.wait_in_sync(topic)
        killed = [cluster.brokers[broker_id] for broker_id in victims(cluster, load)]
        for broker in killed:
            broker.kill()
        if len(killed) < len(cluster.brokers):
            load.wait_writing(timeout_s=60)
        for broker in killed:
            broker.start(wait=False)
        load.wait_writing(timeout_s=60)

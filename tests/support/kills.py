"""Rounds of kills under a load: some brokers die at once, and come back once the rest goes on.

PENSTOCK_HARM_ROUNDS says how many; `make scenarios` has many of them.
"""

import os
import time
from collections.abc import Callable, Sequence

from support.cluster import Cluster
from support.load import Load

ROUNDS = int(os.environ.get("PENSTOCK_HARM_ROUNDS", "1"))
"""Each takes some seconds per victim."""

Victims = Callable[[Cluster, Load], list[int]]
"""Whom to kill: broker ids."""


def everybody(cluster: Cluster, _load: Load) -> list[int]:
    return list(cluster.brokers)


def kill_in_rounds(
    cluster: Cluster, load: Load, victims: Sequence[Victims], *, topics: Sequence[str]
) -> None:
    """Kills all `victims` in turn, ROUNDS times, each time when the ones before are back."""
    begun_s = time.monotonic()
    for _ in range(ROUNDS):
        for find in victims:
            _kill(cluster, load, find, topics)
    seconds = time.monotonic() - begun_s
    print(f"{ROUNDS} rounds, {ROUNDS * len(victims)} times brokers were killed, {seconds:.0f} s")


def _kill(cluster: Cluster, load: Load, find: Victims, topics: Sequence[str]) -> None:
    """Kills who is found at once, and starts them again.

    Not before all `topics` are in sync, so that nothing acknowledged is on the victims alone.
    Those who are left, if any, and then all together acknowledge on every partition.
    """
    for topic in topics:
        cluster.wait_in_sync(topic)
    killed = [cluster.brokers[broker_id] for broker_id in find(cluster, load)]
    for broker in killed:
        broker.kill()
    if len(killed) < len(cluster.brokers):
        load.wait_writing(timeout_s=60)
    for broker in killed:
        broker.start(wait=False)
    load.wait_writing(timeout_s=60)

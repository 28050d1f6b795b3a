"""A cluster in health whose groups, transactions and compaction have much to do.

Two members of the group `readers` commit each second, and a third one comes once and leaves
cleanly. A producer commits every other transaction and aborts the rest. A compacted topic gets the
same keys again and again. What alerts are silent over must be there: before all of it is exported,
the scene does not begin.
"""

from contextlib import ExitStack
from itertools import cycle
from typing import Final

from support.background import Background
from support.cluster import Cluster
from support.local_faults import LocalFault
from support.metrics import scrape
from support.waiting import wait_until

from penstock.client import Consumer, Producer

GROUP: Final = "readers"
ALSO: Final = (
    "penstock_group_members",
    "penstock_transactions_ended_total",
    "penstock_compaction_passes_total",
)
"""Series that no alert reads, and that show what was done."""
_TOPICS: Final = ("flights", "legs")
_OPEN_S: Final = 2.0
_STAYS_S: Final = 3.0
_KEYS: Final = 10


class _Task(Background):
    def __init__(self, cluster: Cluster) -> None:
        super().__init__()
        self._bootstrap = cluster.bootstrap


class _Member(_Task):
    """Reads and commits."""

    def _run(self) -> None:
        with Consumer(self._bootstrap, group_id=GROUP, auto_offset_reset="earliest") as consumer:
            consumer.subscribe(_TOPICS)
            while not self._stop.wait(1):
                consumer.poll(0.5)
                consumer.commit()


class _Visitor(_Task):
    """A member that leaves."""

    def _run(self) -> None:
        with Consumer(self._bootstrap, group_id=GROUP, auto_offset_reset="earliest") as consumer:
            consumer.subscribe(_TOPICS)
            wait_until(lambda: consumer.poll(0.2) or consumer.assignment(), what="it is a member")
            self._stop.wait(_STAYS_S)


class _Transactions(_Task):
    def _run(self) -> None:
        with Producer(self._bootstrap, transactional_id="legs") as producer:
            for commits in cycle([True, False]):
                transaction = producer.transaction()
                transaction.begin()
                for partition in range(4):
                    transaction.send("legs", b"value", partition=partition).result(60)
                stopped = self._stop.wait(_OPEN_S)
                if commits:
                    transaction.commit()
                else:
                    transaction.abort()
                if stopped:
                    return


class _Updates(_Task):
    """A record every 50 ms."""

    def _run(self) -> None:
        with Producer(self._bootstrap, linger_ms=0) as producer:
            for number in cycle(range(_KEYS)):
                producer.send("latest", bytes(2_000), b"%d" % number, partition=0).result(60)
                if self._stop.wait(0.05):
                    return


def _everything_works(cluster: Cluster, stack: ExitStack) -> None:
    cluster.create_topic("legs", partitions=4, replication_factor=3)
    configs = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
    cluster.create_topic("latest", replication_factor=3, configs=configs)
    for task in (_Member, _Member, _Transactions, _Updates):
        stack.enter_context(task(cluster))
    wait_until(lambda: _is_exported(cluster), what="all of it is exported")


def _is_exported(cluster: Cluster) -> bool:
    """Groups are looked at only while there are scrapes."""
    pages = [scrape(port) for port in cluster.metrics_ports.values()]

    def highest(start: str) -> float:
        values = (
            value for page in pages for name, value in page.values.items() if name.startswith(start)
        )
        return max(values, default=0)

    return (
        highest(f"penstock_group_members{{{GROUP}") == 2
        and highest(f"penstock_group_committed_offset{{{GROUP}") > 0
        and highest("penstock_compaction_passes_total") > 0
        and highest("penstock_transactions_ended_total{commit") > 0
        and highest("penstock_transactions_ended_total{abort") > 0
    )


def _a_visitor_comes(cluster: Cluster, stack: ExitStack) -> None:
    stack.enter_context(_Visitor(cluster))


IN_HEALTH: Final = LocalFault(
    work=_everything_works,
    make=_a_visitor_comes,
    options={"broker_config": {"log.cleaner.backoff.ms": "3000"}},
)

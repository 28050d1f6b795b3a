"""What a workload asks a cluster about its own topics: ends, progress, what is visible.

committed(group) ≥ high_watermarks(topics)     nothing is on its way any more
read_committed(begins)                         all that is visible, once nothing is open
"""

import time
from collections.abc import Iterator, Mapping
from typing import Final

from penstock.client import LATEST, Admin, ConsumedBatch, Consumer, TopicPartition
from penstock.client.config import ClientOptions
from penstock.errors import ErrorCode, PenstockError, UnreachableError
from penstock.verify.transactional import high_watermarks

PAUSE_S: Final = 0.2
POLL_S: Final = 0.5


class ClusterProbe:
    """Asks again each time. `settle_s` bounds how long it waits for the cluster to come to rest."""

    def __init__(self, bootstrap: str, options: ClientOptions, settle_s: float) -> None:
        self._bootstrap = bootstrap
        self._options = options
        self._settle_s = settle_s

    def reset(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Makes a group start there; raises GROUP_NOT_EMPTY if it is in use."""
        with self._admin() as admin:
            admin.reset_offsets(group, offsets, reason="penstock verify")

    def committed(self, group: str) -> dict[TopicPartition, int]:
        """The offsets of a group; empty while they are unknown."""
        try:
            with self._admin() as admin:
                offsets = admin.describe_group(group).offsets
        except PenstockError as error:
            if error.retriable or isinstance(error, UnreachableError):
                return {}
            raise
        return {where: found.offset for where, found in offsets.items()}

    def ends(self, *topics: str) -> dict[TopicPartition, int]:
        """Where their logs end for readers of committed records."""
        with self._admin() as admin:
            found = admin.describe_topics(topics)
            where = [
                TopicPartition(topic, each.partition)
                for topic in topics
                for each in found[topic].partitions
            ]
            offsets = admin.list_offsets(dict.fromkeys(where, LATEST))
        return {one: offsets[one].offset for one in where}

    def read_committed(self, begins: Mapping[TopicPartition, int]) -> Iterator[ConsumedBatch]:
        """Everything that readers see from these offsets on, partitions mixed.

        Waits until no transaction is open; raises PenstockError if that or reading takes longer
        than `settle_s` without progress.
        """
        until = time.monotonic() + self._settle_s
        topics = sorted({where.topic for where in begins})
        while (ends := self.ends(*topics)) != high_watermarks(
            self._bootstrap, list(ends), self._options
        ):
            if time.monotonic() > until:
                raise PenstockError(
                    f"transactions on {', '.join(topics)} are open for {self._settle_s:.0f} s "
                    "after the end",
                    ErrorCode.REQUEST_TIMED_OUT,
                )
            time.sleep(PAUSE_S)
        with Consumer(self._bootstrap, **self._options) as consumer:
            consumer.assign(list(ends))
            for where, offset in begins.items():
                consumer.seek(where, offset)
            while any(consumer.position(where) < end for where, end in ends.items()):
                if time.monotonic() > until:
                    raise PenstockError(
                        f"{', '.join(topics)} cannot be read", ErrorCode.REQUEST_TIMED_OUT
                    )
                for batch in consumer.poll(POLL_S):
                    until = time.monotonic() + self._settle_s
                    yield batch

    def _admin(self) -> Admin:
        return Admin(self._bootstrap, **self._options)

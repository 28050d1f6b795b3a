"""Parts of tests of transformers: a source of numbers, what comes out, a thread that runs one.

Numbers are keyed by their remainder, so that the order within each key is known.
"""

import threading
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

from support.cluster import Cluster
from support.waiting import wait_until

from penstock.client import Consumer, Out, Producer, Record, TopicPartition, Transformer
from penstock.client.sync.transformer import Handle

KEYS = 7
PARTITIONS = 3


def fill(cluster: Cluster, topic: str, numbers: range) -> None:
    with Producer(cluster.bootstrap) as producer:
        for number in numbers:
            producer.send(topic, b"%d" % number, b"key-%d" % (number % KEYS))
        assert producer.close(120) == 0


def make_source(cluster: Cluster, name: str, count: int = 0) -> str:
    """A topic with so many numbers, and `.out` for what is made of them; the name."""
    for topic in (name, f"{name}.out"):
        cluster.create_topic(topic, partitions=PARTITIONS)
    if count:
        fill(cluster, name, range(count))
    return name


class Output:
    """What a read_committed reader sees of a topic from its beginning."""

    def __init__(self, cluster: Cluster, topic: str, partitions: int = PARTITIONS) -> None:
        self.seen: list[Record] = []
        self._reader = Consumer(cluster.bootstrap)
        self._reader.assign([TopicPartition(topic, number) for number in range(partitions)])

    def has(self, count: int) -> bool:
        for batch in self._reader.poll(0.1):
            self.seen.extend(batch.records())
        return len(self.seen) >= count

    def all(self, count: int) -> list[int]:
        """Waits for so many, and reads on to the end: there may be more."""
        wait_until(lambda: self.has(count), what=f"{count} records of output", timeout_s=90)
        wait_until(lambda: not any(self._reader.lag().values()), what="all is read")
        self.has(0)
        return [int(record.value or b"") for record in self.seen]

    def check(self, numbers: range) -> None:
        """Each once, and each key in order."""
        got = self.all(len(numbers))
        twice = {number: count for number, count in Counter(got).items() if count > 1}
        assert not twice, f"more than once: {twice}"
        assert sorted(got) == list(numbers)
        per_key: dict[bytes | None, list[int]] = defaultdict(list)
        for record in self.seen:
            per_key[record.key].append(int(record.value or b""))
        for key, found in per_key.items():
            assert found == sorted(found), f"{key!r} out of order"

    def close(self) -> None:
        self._reader.close()


class Running:
    """A transformer whose handler runs in a thread."""

    def __init__(self, cluster: Cluster, source: str, handle: Handle, /, **options: Any) -> None:
        named: dict[str, Any] = {"group_id": source, "source": source, **options}
        self.loop = Transformer(cluster.bootstrap, **named)
        self.model = self.loop.core.model
        self.errors: list[Exception] = []
        self._thread = threading.Thread(target=self._run, args=(handle,), daemon=True)
        self._thread.start()

    def _run(self, handle: Handle) -> None:
        try:
            self.loop.run(handle)
        except Exception as error:  # noqa: BLE001 - the test looks at it
            self.errors.append(error)

    def stop(self) -> None:
        """Ends it without an error."""
        self.loop.stop()
        self._thread.join(300)
        assert not self._thread.is_alive(), "it does not stop"
        self.loop.close()


def copy_to(source: str) -> Callable[[Record, Out], None]:
    def copy(record: Record, out: Out) -> None:
        out.send(f"{source}.out", record.value, record.key)

    return copy

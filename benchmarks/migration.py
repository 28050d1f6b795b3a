"""An import of many records from a real Kafka into three brokers, beside what bounds it.

    Kafka, filled once ─┬─ read by a plain confluent-kafka consumer
                        └─ `penstock import`: scanned, copied, compared
    our producer ──────── writes as many of the same bytes

All in one run, one after the other, so the ratios mean something. With `--folder`, both clusters'
data stay there: a run that was interrupted continues, its rates are of what it copied itself.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any, Final

from benchmarks.common import MANIFEST, elapsed, figure, progress
from benchmarks.kafka_peer import Peer, available, kafka
from penstock.client import Admin, Producer, TopicPartition
from penstock.migration.model import Bounds
from penstock_broker.local import LocalCluster

RECORDS: Final = 10_000_000
RECORD_BYTES: Final = 100
PARTITIONS: Final = 6
BROKERS: Final = 3
CHUNK: Final = 10_000
TOPIC, WRITTEN = "migrated", "written"
CONSUMER: Final = "a confluent-kafka consumer that reads the same"
PRODUCER: Final = "our producer that writes the same"
QUIET_S: Final = 60.0
SHOWN_EVERY_S: Final = 5.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=RECORDS)
    parser.add_argument("--record-bytes", type=int, default=RECORD_BYTES)
    parser.add_argument("--folder", type=Path, help="keeps the data, so that a run can continue")
    args = parser.parse_args()
    missing = available()
    if missing is not None:
        raise SystemExit(f"{missing}; both are needed to run Kafka")
    if args.records < PARTITIONS:
        raise SystemExit(f"--records is {args.records}; at least {PARTITIONS}, one per partition")
    if args.record_bytes < 1:
        raise SystemExit(f"--record-bytes is {args.record_bytes}; at least 1")
    try:
        with (
            _folder(args.folder) as home,
            kafka(1, home / "kafka") as peer,
            _cluster(home) as ours,
        ):
            measure(peer, ours, args.records, args.record_bytes)
    except KeyboardInterrupt:
        progress("interrupted; with --folder, the same command continues")
        return 130
    return 0


def measure(peer: Peer, ours: LocalCluster, records: int, record_bytes: int) -> None:
    fill(peer, records, record_bytes)
    os.sync()
    progress("reading with confluent-kafka")
    read = records / elapsed(lambda: read_all(peer, records))
    progress("writing with our producer")
    wrote = records / written_s(ours, records, record_bytes)
    os.sync()
    done = imported(peer, ours)
    figure("import: records in Kafka", records, "records")
    figure(
        "import: partitions whose counts and checksums are the same",
        done.same,
        "",
        "partitions",
        PARTITIONS,
    )
    figure("import: from the command to its result", done.whole_s, "s")
    if done.records:
        figure("import: records copied", done.rate, "records/s", CONSUMER, read)
        figure("import: records copied", done.rate, "records/s", PRODUCER, wrote)
        whole = done.records / done.whole_s
        figure("import: looked at, copied and compared", whole, "records/s", CONSUMER, read)
    if done.looked_s:
        looked = records / done.looked_s
        figure("import: records looked at before", looked, "records/s", CONSUMER, read)
    compared = records / done.compared_s
    figure("import: records compared after", compared, "records/s", CONSUMER, read)


def fill(peer: Peer, records: int, record_bytes: int) -> None:
    """Kafka's topic has `records` records afterwards; those of an earlier run stay."""
    import confluent_kafka as ck  # noqa: PLC0415 - after it is known that Kafka runs
    from confluent_kafka.admin import AdminClient, NewTopic  # noqa: PLC0415

    admin = AdminClient({"bootstrap.servers": peer.bootstrap})
    if TOPIC not in admin.list_topics(timeout=QUIET_S).topics:
        new = NewTopic(TOPIC, PARTITIONS, 1, config={"retention.ms": "-1"})
        admin.create_topics([new])[TOPIC].result(QUIET_S)
    there = sum(each.end for each in _ends(peer))
    if there > records:
        raise SystemExit(f"the folder has {there} records in Kafka, more than --records {records}")
    producer = ck.Producer(
        {
            "bootstrap.servers": peer.bootstrap, "partitioner": "murmur2_random", "acks": "all",
            "enable.idempotence": True, "linger.ms": 20, "queue.buffering.max.messages": 1_000_000,
        }
    )  # fmt: skip
    shown = _Shown("filled Kafka with", records)
    for index in range(there, records):
        key, value = _record(index, record_bytes)
        while True:
            try:
                producer.produce(TOPIC, value, key)
                break
            except BufferError:
                producer.poll(0.1)
        if index % CHUNK == 0:
            producer.poll(0)
            shown.at(index)
    if producer.flush(2 * QUIET_S):
        raise SystemExit("Kafka did not take all records")


def _record(index: int, record_bytes: int) -> tuple[bytes, bytes]:
    """Key and value; values differ, and are as long as asked for."""
    text = b"%d-" % index
    return b"key-%d" % (index % 100_000), (text * (record_bytes // len(text) + 1))[:record_bytes]


def _ends(peer: Peer) -> list[Bounds]:
    """Of each partition; a new topic's leaders are waited for."""
    from penstock.migration.kafka import Kafka  # noqa: PLC0415

    wheres = [TopicPartition(TOPIC, index) for index in range(PARTITIONS)]
    return list(Kafka(peer.bootstrap, {}).bounds(wheres).values())


def read_all(peer: Peer, records: int) -> None:
    """As fast as a plain consumer can: keys and values are touched, and nothing else."""
    import confluent_kafka as ck  # noqa: PLC0415

    consumer = ck.Consumer(
        {"bootstrap.servers": peer.bootstrap, "group.id": "bench", "enable.auto.commit": False}
    )
    consumer.assign([ck.TopicPartition(TOPIC, index, 0) for index in range(PARTITIONS)])
    seen, heard_at = 0, monotonic()
    try:
        while seen < records:
            for message in consumer.consume(CHUNK, 1.0):
                if message.error() is None:
                    message.key()
                    message.value()
                    seen += 1
                    heard_at = monotonic()
            if monotonic() - heard_at > QUIET_S:
                raise SystemExit(f"Kafka gave {seen} of {records} records")
    finally:
        consumer.close()


def written_s(ours: LocalCluster, records: int, record_bytes: int) -> float:
    """Seconds in which our producer writes as many records to a topic like the target's; the topic
    is gone afterwards."""
    made = [_record(index, record_bytes) for index in range(CHUNK)]
    keys, values = [key for key, _ in made], [value for _, value in made]
    with Admin(ours.bootstrap) as admin:
        if WRITTEN in admin.list_topics():
            admin.delete_topic(WRITTEN)
        admin.create_topic(WRITTEN, PARTITIONS, BROKERS)
        began = monotonic()
        with Producer(ours.bootstrap, acks="all") as producer:
            for start in range(0, records, CHUNK):
                count = min(CHUNK, records - start)
                producer.send_columns(
                    WRITTEN, values[:count], keys[:count],
                    timestamps_ms=[1_700_000_000_000] * count,
                    partition=start // CHUNK % PARTITIONS,
                )  # fmt: skip
            producer.flush()
        seconds = monotonic() - began
        admin.delete_topic(WRITTEN)
    return seconds


@dataclass(frozen=True, slots=True)
class Imported:
    """What the command did, as its result and its lines of progress tell it."""

    records: int
    """Copied by this run; an earlier one may have copied the others."""
    same: int
    """Partitions whose counts and checksums are those of Kafka."""
    rate: float
    """Records copied per second, from the first line that tells of it to the last."""
    looked_s: float
    """0: not known, as the copy was done before a second line told of it."""
    compared_s: float
    whole_s: float


def imported(peer: Peer, ours: LocalCluster) -> Imported:
    """Runs `penstock import`. Ends the program if a count or a checksum is not what it must be."""
    began = monotonic()
    command = (
        sys.executable, "-m", "penstock.cli", "import", "--from", f"kafka://{peer.bootstrap}",
        "--topics", TOPIC, "--bootstrap", ours.bootstrap, "-o", "json",
    )  # fmt: skip
    copying: list[tuple[float, int]] = []
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        shown_at, line = 0.0, ""
        for line in running.stderr:
            now = monotonic()
            if line.startswith("copied:"):
                copying.append((now, int(line.split()[1].replace(",", ""))))
            if now - shown_at >= SHOWN_EVERY_S:
                shown_at = now
                progress(line.rstrip())
        said = running.stdout.read()
    ended = monotonic()
    if running.returncode != 0:
        raise SystemExit(f"penstock import: exit code {running.returncode}: {line.rstrip()}")
    result = json.loads(said)
    partitions = result["partitions"]
    wrong = [each for each in partitions if each["checksum"] != "same"]
    total = sum(each.end - each.first for each in _ends(peer))
    if wrong or sum(each["found"] for each in partitions) != total:
        raise SystemExit(f"the copy is not what it was made from: {wrong or partitions}")
    first, (copied_at, copied) = copying[0] if len(copying) > 1 else (began, 0), copying[-1]
    rate = (copied - first[1]) / (copied_at - first[0])
    return Imported(
        records=copied,
        same=len(partitions),
        rate=rate,
        looked_s=first[0] - began - (first[1] / rate if rate else 0.0),
        compared_s=ended - copied_at,
        whole_s=ended - began,
    )


class _Shown:
    """Progress, every five seconds."""

    def __init__(self, done: str, total: int) -> None:
        self._done, self._total = done, total
        self._began = self._shown_at = monotonic()

    def at(self, count: int) -> None:
        if monotonic() - self._shown_at >= SHOWN_EVERY_S:
            self._shown_at = monotonic()
            rate = count / (self._shown_at - self._began)
            progress(f"{self._done} {count:,} of {self._total:,} records, {rate:,.0f}/s")


@contextlib.contextmanager
def _folder(given: Path | None) -> Iterator[Path]:
    if given is not None:
        given.mkdir(parents=True, exist_ok=True)
        yield given
        return
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as scratch:
        yield Path(scratch)


@contextlib.contextmanager
def _cluster(home: Path) -> Iterator[LocalCluster]:
    """Three brokers, and the topic that the import fills: a replica on each, not one as in Kafka.

    Its keys lie as Kafka's, and it keeps all records."""
    manifest = home / "cluster.yaml"
    manifest.write_text(MANIFEST.format(brokers=BROKERS))
    with LocalCluster.from_manifest(manifest, data_dir=home / "penstock") as cluster:
        with Admin(cluster.bootstrap) as admin:
            if TOPIC not in admin.list_topics():
                configs: dict[str, Any] = {
                    "partitioner": "murmur2", "retention.ms": "-1", "max.message.bytes": "1100000",
                }  # fmt: skip
                admin.create_topic(TOPIC, PARTITIONS, BROKERS, configs)
        yield cluster


if __name__ == "__main__":
    sys.exit(main())

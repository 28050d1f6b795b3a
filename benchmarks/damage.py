"""A bit that flips on a broker's disk: how soon readers get the batch, how soon it is mended; and
what it costs to look for such bits (ADR 72, 80). One cluster of three brokers.

**mending**: the leader's copy of one batch is damaged in a log of `--mib`, and a reader asks for
it. Found and mended are times of the leader's log; served is when the reader has the record. The
leader's whole log is read before it is called mended, so that this depends on `--mib`.

**rest**, **load**: brokers read `--mib` from their disks, at 1 MiB/s, the pace of a broker with up
to 300 GB, or because somebody has asked for it: at 16 MiB/s, less if a read takes long. They are
restarted before each run. Without the record of what they have read, they begin at once.
"""

import argparse
import json
import mmap
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from functools import partial
from pathlib import Path
from random import Random

from benchmarks.catch_up import await_condition, in_sync
from benchmarks.common import (
    cpu_seconds,
    figure,
    figure_of_rounds,
    in_turns,
    local_cluster,
    median,
    percentile,
    progress,
    run_parts,
)
from benchmarks.load import LIVE, PARTITIONS, Load, Probe, top_rate
from penstock.client import Admin, Consumer, Producer, TopicPartition
from penstock_broker.local import LocalCluster

COLD = "cold"
"""The topic whose log is damaged, or read."""
WHERE = TopicPartition(COLD, 0)
LEADER = 0
BROKERS = (0, 1, 2)
MIB = 1 << 20
RECORD_BYTES = 1_000
RECORDS = 100
"""Of each batch."""
SCRUB_RECORD = "scrub.json"
SETTLE_S = 2
PARTS = ("mending", "rest", "load")


class Pace(Enum):
    """Why brokers read their logs, and so how fast; the values are for people."""

    NONE = "no scrub"
    REGULAR = "a scrub at 1 MiB/s"
    ASKED = "a scrub on request"


@dataclass(frozen=True)
class Sizes:
    """`mib`: of the log that is damaged, or read. `least`: MiB/s that a broker must have read
    beside what was measured."""

    mib: int
    rounds: int
    damaged: int
    seconds: float
    least: float = 0.8


QUICK = Sizes(mib=32, rounds=1, damaged=2, seconds=1, least=0)


class Stage:
    """The cluster, with a log in which every batch has a mark of its own."""

    def __init__(self, cluster: LocalCluster, admin: Admin, sizes: Sizes) -> None:
        self.cluster = cluster
        self.admin = admin
        self.sizes = sizes
        admin.create_topic(COLD, assignment=[[*BROKERS]])
        self.batches = sizes.mib * MIB // (RECORDS * RECORD_BYTES)
        filler = os.urandom(RECORD_BYTES)
        with Producer(cluster.bootstrap) as producer:
            for number in range(self.batches):
                values = [mark(number) + filler] + [filler] * (RECORDS - 1)
                producer.send_columns(COLD, values, partition=0).result(120)

    def restart(self, *, forgetful: bool = False) -> None:
        """One broker after the other: what was in memory is in files then. `forgetful`: they do not
        know that they have ever read their logs."""
        for broker in BROKERS:
            self.cluster.stop_broker(broker)
            if forgetful:
                (self.data(broker) / SCRUB_RECORD).unlink(missing_ok=True)
            self.cluster.start_broker(broker)
            self.await_in_sync()

    def data(self, broker: int) -> Path:
        return self.cluster.directory.data(f"broker-{broker}")

    def await_in_sync(self) -> None:
        def is_whole() -> bool:
            marked = any(one.damaged for one in self.admin.describe_moves([COLD]).moves)
            return not marked and all(in_sync(self.admin, one, [COLD]) for one in BROKERS)

        await_condition("all replicas in sync", is_whole)

    def lead(self) -> None:
        def leads() -> bool:
            self.admin.elect_leaders([WHERE])
            return self.admin.describe_topics([COLD])[COLD].partitions[0].leader == LEADER

        await_condition(f"broker {LEADER} leads", leads)

    def restart_for(self, pace: Pace) -> None:
        """Brokers that read at this pace while `scrubbing`, and from the disk."""
        self.restart(forgetful=pace is Pace.REGULAR)
        if pace is Pace.REGULAR:
            await_condition("the scrub", lambda: all(self._read_mib()))
        else:
            self.admin.start_scrub(COLD)
            await_condition("the end of the scrub", self._has_read_all)
        for broker in BROKERS:
            evict(self.data(broker))

    def _has_read_all(self) -> bool:
        return not any(one.due for one in self.admin.describe_scrub())

    @contextmanager
    def scrubbing(self, pace: Pace) -> Iterator[None]:
        """They read all the while, or SystemExit: what less of it costs would say nothing."""
        before, began = self._read_mib(), time.monotonic()
        if pace is Pace.ASKED:
            self.admin.start_scrub(COLD)
        yield
        took_s = time.monotonic() - began
        after = self._read_mib()
        rates = [(now - was) / took_s for was, now in zip(before, after, strict=True)]
        progress(f"{pace.value}: {', '.join(f'{rate:.2f}' for rate in rates)} MiB/s")
        if pace is Pace.NONE:
            if any(rates):
                raise SystemExit("something was read beside a measurement without a scrub")
        elif not all(after) or min(rates) < self.sizes.least:
            raise SystemExit("too little was read beside a measurement: try more --mib")

    def _read_mib(self) -> list[float]:
        """What each broker has read since it was started."""
        return [one.read_bytes / MIB for one in self.admin.describe_scrub()]


def mark(number: int) -> bytes:
    return b"<batch %09d>" % number


def evict(folder: Path) -> None:
    """From the page cache."""
    os.sync()
    for path in folder.rglob("*"):
        if path.is_file():
            with suppress(FileNotFoundError), path.open("rb") as file:  # the broker runs
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


# ── One damaged batch ─────────────────────────────────────────────────────────────────────────


def mending(stage: Stage) -> None:
    """From found to served and mended, the worst of several."""
    stage.restart()
    draw = Random(1)
    served, mended, back = [], [], []
    for number in draw.sample(range(stage.batches), stage.sizes.damaged):
        stage.lead()
        log = stage.cluster.log_file(LEADER)
        said = log.stat().st_size
        served_at = read_damaged(stage, number)
        await_condition("mending", partial(has_mended, log, said))
        stage.await_in_sync()
        back_at = datetime.now(UTC)
        told = events(log, said)
        found_at = told["replica damaged"]
        served.append((served_at - found_at).total_seconds())
        mended.append((told["replica mended"] - found_at).total_seconds())
        back.append((back_at - found_at).total_seconds())
        progress(f"served {served[-1]:.3f} s, mended {mended[-1]:.3f} s, back {back[-1]:.3f} s")
    size = f"in a log of {stage.sizes.mib} MiB"
    for name, times_s, limit_s in (
        ("found to served", served, 1.0),
        (f"found to mended, {size}", mended, 3.0),
    ):
        goal = "ratio at most 1"
        figure(f"a damaged batch, {name}, worst", max(times_s), "s", "limit", limit_s, goal=goal)
        figure(f"a damaged batch, {name}, median", median(times_s), "s", "limit", limit_s)
    figure(f"a damaged batch, found to in sync again, {size}, median", median(back), "s")


def read_damaged(stage: Stage, number: int) -> datetime:
    """When a reader, who is connected already, has the record that the leader cannot read."""
    offset = number * RECORDS
    with Consumer(stage.cluster.bootstrap) as consumer:
        consumer.assign([WHERE])
        consumer.seek_to_end()
        consumer.poll(0.5)
        flip(stage.data(LEADER), mark(number))
        consumer.seek(WHERE, offset)
        limit = time.monotonic() + 60
        while not (found := consumer.poll(1, max_records=1)):
            if time.monotonic() > limit:
                raise SystemExit(f"nobody has served offset {offset} for a minute")
        at = datetime.now(UTC)
    (record,) = found[0].records()
    if record.offset != offset or not (record.value or b"").startswith(mark(number)):
        raise SystemExit(f"offset {record.offset} instead of {offset}, or another value")
    return at


def flip(data: Path, wanted: bytes) -> None:
    """A bit behind `wanted`, wherever a broker that runs has it in a blob file."""
    flipped = 0
    for path in data.rglob("*.blob"):
        if not path.stat().st_size:
            continue  # one that was just begun; nothing empty can be mapped
        with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as content:
            at = content.find(wanted)
            if at >= 0:
                content[at + len(wanted) + 100] ^= 0x10
                flipped += 1
    if not flipped:
        raise SystemExit(f"{wanted!r} is in no blob file of {data}")


def has_mended(log: Path, since_bytes: int) -> bool:
    return "replica mended" in events(log, since_bytes)


def events(log: Path, since_bytes: int) -> dict[str, datetime]:
    """When a broker first said each of its events, in the part of its log from there on."""
    found: dict[str, datetime] = {}
    with log.open("rb") as file:
        file.seek(since_bytes)
        for text in file.read().decode().splitlines(keepends=True):
            if text.startswith("{") and text.endswith("\n"):
                line = json.loads(text)
                found.setdefault(line["event"], datetime.fromisoformat(line["time"]))
    return found


# ── Looking for damage ────────────────────────────────────────────────────────────────────────


def at_rest(stage: Stage) -> None:
    """Processor time of brokers at rest that read their logs, less that of those that do not."""
    shares = in_turns(stage.sizes.rounds, {pace: partial(share, stage, pace) for pace in Pace})
    for pace in (Pace.REGULAR, Pace.ASKED):
        each = [
            beside - alone for beside, alone in zip(shares[pace], shares[Pace.NONE], strict=True)
        ]
        figure(
            f"CPU that {pace.value} costs a broker",
            100 * median(each),
            "% of a core",
            "limit",
            3.0,
            goal="ratio at most 1" if pace is Pace.REGULAR else "",
        )


def share(stage: Stage, pace: Pace) -> float:
    """Of a core, per broker."""
    stage.restart_for(pace)
    pids = [stage.cluster.broker_pid(broker) or 0 for broker in BROKERS]
    with stage.scrubbing(pace):
        before, began = sum(map(cpu_seconds, pids)), time.monotonic()
        time.sleep(stage.sizes.seconds)
        used_s, took_s = sum(map(cpu_seconds, pids)) - before, time.monotonic() - began
    return used_s / took_s / len(pids)


def under_load(stage: Stage) -> None:
    """acks=all at half of the top rate while all brokers read their logs, and without."""
    stage.admin.create_topic(LIVE, PARTITIONS, 3)
    top = top_rate(stage.cluster, stage.sizes.seconds)
    stage.admin.delete_topic(LIVE)
    runs = {pace: partial(p99, stage, pace, top / 2) for pace in Pace}
    found_s = in_turns(stage.sizes.rounds, runs)
    for pace in (Pace.REGULAR, Pace.ASKED):
        figure_of_rounds(
            f"acks=all p99 at half the top rate, beside {pace.value}",
            [each * 1e3 for each in found_s[pace]],
            "ms",
            "without",
            [each * 1e3 for each in found_s[Pace.NONE]],
            goal="ratio ≤ 1.05" if pace is Pace.REGULAR else "",
        )


def p99(stage: Stage, pace: Pace, bytes_per_s: float) -> float:
    """In seconds."""
    stage.restart_for(pace)
    stage.admin.create_topic(LIVE, PARTITIONS, 3)
    load = Load(stage.cluster.bootstrap, LIVE, bytes_per_s)
    try:
        time.sleep(SETTLE_S)
        with stage.scrubbing(pace):
            probe = Probe(stage.cluster.bootstrap)
            time.sleep(stage.sizes.seconds)
            took_s = probe.latencies_s()
    finally:
        load.stop()
    stage.admin.delete_topic(LIVE)
    found = percentile(took_s, 0.99)
    progress(f"{pace.value}: p99 {found * 1e3:.1f} ms of {len(took_s)}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=512, help="of the log that is damaged, or read")
    parser.add_argument("--rounds", type=int, default=6, help="of the scrub's figures")
    parser.add_argument("--damaged", type=int, default=20, help="batches")
    parser.add_argument("--seconds", type=float, default=20, help="of each run beside a scrub")
    parser.add_argument("--quick", action="store_true", help="only shows that it works")
    parser.add_argument("--only", action="append", choices=PARTS)
    args = parser.parse_args()
    sizes = QUICK if args.quick else Sizes(args.mib, args.rounds, args.damaged, args.seconds)
    with local_cluster(len(BROKERS)) as cluster, Admin(cluster.bootstrap) as admin:
        progress(f"a log of {sizes.mib} MiB")
        stage = Stage(cluster, admin, sizes)
        parts = {
            "mending": lambda: mending(stage),
            "rest": lambda: at_rest(stage),
            "load": lambda: under_load(stage),
        }
        return run_parts({name: parts[name] for name in PARTS if name in (args.only or PARTS)})


if __name__ == "__main__":
    raise SystemExit(main())

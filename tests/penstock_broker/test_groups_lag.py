"""Lag for Prometheus: collected now and then, bounded, unknown where nobody knows (I19)."""

import asyncio
import json
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support import command_line
from support.cluster import PATIENT, Cluster
from support.counting_child import LAUNCHER
from support.group_wire import Groups
from support.waiting import wait_until, wait_until_async
from support.wire import now_ms

from penstock.client import Producer
from penstock.core.batch import Batch
from penstock.core.groups import GroupConfig, GroupCoordinator
from penstock.core.groups import contract as c
from penstock.core.groups.catalog import Catalog, CatalogTopic, NamedPartition, Subscription
from penstock.core.lag import PartitionLag
from penstock.core.records import build_batch, encode_columns
from penstock.core.types import LeaderEpoch, Offset, ProducerId, TopicId
from penstock.errors import ClusterError, ErrorCode, PenstockError
from penstock_broker.groups import lag as lag_module
from penstock_broker.groups.lag import Bounds, LagCollection, Snapshot
from penstock_broker.groups.lag_metrics import GroupLagMetrics

ORDERS = Catalog.of(CatalogTopic("orders", TopicId("id-1"), 4))
P0, P1 = (NamedPartition("orders", TopicId("id-1"), i) for i in range(2))


class Led:
    """A coordinator's machine whose records are committed at once."""

    def __init__(self) -> None:
        self.machine = GroupCoordinator(GroupConfig(), 0)
        self.machine.start(ORDERS, 0)
        self.loaded = True
        self.closed: PenstockError | None = None

    async def ask(self, make: Callable[[int], c.Request]) -> c.Answer:
        ready = self.machine.handle(make(1), 0)
        (answer,) = [out.answer for out in ready.outputs if isinstance(out, c.Reply)]
        assert not isinstance(answer, PenstockError)
        return answer

    def commit(self, group: str, offsets: Mapping[NamedPartition, int]) -> None:
        new = tuple(c.NewOffset(where=where, offset=offset) for where, offset in offsets.items())
        self.machine.handle(
            c.CommitRequested(
                request_id=1,
                group_id=group,
                member_id="",
                member_epoch=-1,
                instance_id="",
                offsets=new,
            ),
            0,
        )

    def pend(self, group: str, offsets: Mapping[NamedPartition, int]) -> None:
        """In an open transaction."""
        ready = self.machine.handle(
            c.CommitRequested(
                request_id=2,
                group_id=group,
                member_id="",
                member_epoch=-1,
                instance_id="",
                offsets=tuple(
                    c.NewOffset(where=where, offset=offset) for where, offset in offsets.items()
                ),
                transactional_id="id",
                producer_id=ProducerId(1 << 62),
                producer_epoch=0,
            ),
            0,
        )
        (join,) = [out for out in ready.outputs if isinstance(out, c.SendJoin)]
        joined = c.TransactionJoined(
            group_id=group,
            transactional_id=join.transactional_id,
            producer_id=join.producer_id,
            number=join.number,
        )
        self.machine.handle(joined, 0)

    def join(self, group: str, stream: int = 1) -> None:
        hello = c.MemberJoined(
            stream_id=stream,
            group_id=group,
            member_id=f"member-{stream}",
            subscription=Subscription(("orders",)),
        )
        self.machine.handle(hello, 0)


@dataclass
class Logs:
    """Implements Leaders: logs of batches; notes what was asked."""

    batches: dict[NamedPartition, list[Batch]] = field(default_factory=dict)
    starts: dict[NamedPartition, int] = field(default_factory=dict)
    silent: set[NamedPartition] = field(default_factory=set)
    asked_bounds: list[int] = field(default_factory=list)
    fetched: list[dict[NamedPartition, int]] = field(default_factory=list)
    closed: bool = False

    def append(self, where: NamedPartition, *times_ms: int, gap: int = 0) -> None:
        columns = encode_columns([b"v"] * len(times_ms), timestamps_ms=list(times_ms))
        base = Offset(self.end(where) + gap)
        batch = build_batch(columns).stamped(base, LeaderEpoch(1), 0)
        self.batches.setdefault(where, []).append(batch)

    def end(self, where: NamedPartition) -> int:
        known = self.batches.get(where)
        return known[-1].next_offset if known else 0

    async def bounds(self, asked: Iterable[NamedPartition]) -> dict[NamedPartition, Bounds]:
        there = [where for where in asked if where not in self.silent]
        self.asked_bounds.append(len(there))
        return {where: Bounds(self.starts.get(where, 0), self.end(where)) for where in there}

    async def first_batches(
        self, asked: Mapping[NamedPartition, int]
    ) -> dict[NamedPartition, Sequence[Batch]]:
        self.fetched.append(dict(asked))
        return {
            where: [b for b in self.batches[where] if b.next_offset > offset][:1]
            for where, offset in asked.items()
        }

    async def close(self) -> None:
        self.closed = True


def collection(led: Led, logs: Logs) -> LagCollection:
    return LagCollection(lambda: [led], logs)


def collect(lag: LagCollection, limit: int = 100) -> Snapshot:
    lag.snapshot = asyncio.run(lag.collect(limit))
    return lag.snapshot


def lags(snapshot: Snapshot) -> dict[tuple[str, int], PartitionLag]:
    return {
        (seen.group.group_id, where.partition): found
        for seen in snapshot.groups
        for where, found in seen.partitions.items()
    }


def exported(lag: LagCollection) -> dict[tuple[str, ...], float]:
    return {
        (sample.name.removeprefix("penstock_group_"), *sample.labels.values()): sample.value
        for family in GroupLagMetrics(lag).collect()
        for sample in family.samples
    }


def test_lag_is_what_lies_behind_the_committed_offset_of_each_group() -> None:
    led, logs = Led(), Logs()
    logs.append(P0, 1000, 2000, 3000)
    logs.append(P0, 4000)
    logs.append(P1, 9000)
    led.commit("ahead", {P0: 4, P1: 1})
    led.commit("behind", {P0: 1})
    found = lags(collect(collection(led, logs)))
    assert (found["ahead", 0].records, found["ahead", 0].lag_ms) == (0, 0)
    assert (found["ahead", 1].records, found["ahead", 1].lag_ms) == (0, 0)
    behind = found["behind", 0]
    assert (behind.committed, behind.records, behind.end) == (1, 3, 4)
    assert behind.lag_ms is not None
    assert behind.lag_ms > 10**12, "by the record's own time, 2 s after 1970"
    assert logs.fetched == [{P0: 1}], "who has read everything costs no fetch"


def test_holes_and_expired_records_are_no_lag() -> None:
    led, logs = Led(), Logs()
    logs.append(P0, 1000)
    logs.append(P0, 5000, 6000, gap=7)  # offsets 1 to 7 were compacted away
    logs.append(P1, *[1000] * 10)
    logs.starts[P1] = 6
    led.commit("g", {P0: 1, P1: 2})
    found = lags(collect(collection(led, logs)))
    assert found["g", 0].records == 2
    assert found["g", 1].records == 4


def test_what_stands_still_is_looked_up_once() -> None:
    led, logs = Led(), Logs()
    logs.append(P0, 1000, 2000)
    led.commit("stuck", {P0: 1})
    lag = collection(led, logs)
    collect(lag)
    logs.append(P0, 3000)
    assert lags(collect(lag))["stuck", 0].records == 2
    assert len(logs.fetched) == 1
    led.commit("stuck", {P0: 2})
    assert lags(collect(lag))["stuck", 0].records == 1
    assert logs.fetched[1:] == [{P0: 2}]


def test_nothing_remembered_is_trusted_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    led, logs = Led(), Logs()
    logs.append(P0, 1000)
    logs.append(P0, 2000)
    led.commit("stuck", {P0: 0})
    lag = collection(led, logs)
    assert lags(collect(lag))["stuck", 0].records == 2
    del logs.batches[P0][0]  # compaction took the record
    monkeypatch.setattr("penstock_broker.groups.unread.TRUST_S", -1.0)
    assert lags(collect(lag))["stuck", 0].records == 1


def test_one_batch_answers_for_all_groups_that_stand_in_it() -> None:
    led, logs = Led(), Logs()
    logs.append(P0, *range(1000, 1100))
    logs.append(P0, 5000)
    for number in range(100):
        led.commit(f"g{number}", {P0: number})
    found = lags(collect(collection(led, logs)))
    assert [found[f"g{number}", 0].records for number in range(100)] == list(range(101, 1, -1))
    assert all(lag.lag_ms is not None for lag in found.values())
    assert len(logs.fetched) == 1


def test_groups_spread_over_a_log_all_have_their_turn() -> None:
    led, logs = Led(), Logs()
    for number in range(30):
        logs.append(P0, 1000 + number)
        led.commit(f"g{number}", {P0: number})
    lag = collection(led, logs)
    first = lags(collect(lag))
    assert len(logs.fetched) == lag_module.PASSES_MAX
    assert {found.records for found in first.values()} == set(range(1, 31))
    assert sum(found.lag_ms is not None for found in first.values()) == lag_module.PASSES_MAX
    for _ in range(3):
        last = lags(collect(lag))
    assert all(found.lag_ms is not None for found in last.values())


def test_a_thousand_groups_at_rest_cost_one_question() -> None:
    led, logs = Led(), Logs()
    logs.append(P0, 1000, 2000)
    for number in range(1000):
        led.commit(f"g{number}", {P0: 2 - number % 2})
    lag = collection(led, logs)
    collect(lag, 1000)
    logs.asked_bounds.clear()
    logs.fetched.clear()
    assert len(collect(lag, 1000).groups) == 1000
    assert logs.asked_bounds == [1], "one partition, however many groups read it"
    assert logs.fetched == []


def test_unknown_is_absent_and_not_zero() -> None:
    led, logs = Led(), Logs()
    logs.append(P1, 1000)
    led.commit("g", {P0: 7, P1: 1})
    logs.silent.add(P0)
    lag = collection(led, logs)
    collect(lag)
    samples = exported(lag)
    assert samples["committed_offset", "g", "orders", "0"] == 7
    assert samples["partition_lag_records", "g", "orders", "1"] == 0
    assert ("partition_lag_records", "g", "orders", "0") not in samples
    assert ("partition_lag_seconds", "g", "orders", "0") not in samples


def test_offsets_that_a_transaction_holds_are_counted_and_lag_is_of_what_is_committed() -> None:
    led, logs = Led(), Logs()
    logs.append(P0, 1000, 2000, 3000)
    led.commit("g", {P0: 1})
    led.pend("g", {P0: 3, P1: 5})
    lag = collection(led, logs)
    collect(lag)
    samples = exported(lag)
    assert samples["pending_offsets", "g"] == 2
    assert samples["committed_offset", "g", "orders", "0"] == 1
    assert samples["partition_lag_records", "g", "orders", "0"] == 2
    assert ("committed_offset", "g", "orders", "1") not in samples, "it never was"


def test_beyond_the_limit_whole_groups_are_left_out_and_counted_live_ones_last() -> None:
    led, logs = Led(), Logs()
    led.commit("a-empty", {P0: 0, P1: 0})
    led.commit("b-empty", {P0: 0})
    led.commit("z-live", {P0: 0, P1: 0})
    led.join("z-live")
    lag = collection(led, logs)
    collect(lag, 3)
    samples = exported(lag)
    assert samples["partitions_left_out",] == 2
    assert {key[1] for key in samples if key[0] == "members"} == {"z-live", "b-empty"}
    assert samples["members", "z-live"] == 1
    assert samples["state", "b-empty", "Empty"] == 1
    collect(lag, 5)
    assert exported(lag)["partitions_left_out",] == 0


def test_a_group_that_moved_is_gone_before_the_next_round() -> None:
    led, logs = Led(), Logs()
    led.commit("g", {P0: 0})
    lag = collection(led, logs)
    collect(lag)
    assert exported(lag)["members", "g"] == 0
    led.closed = ClusterError("elsewhere", ErrorCode.NOT_COORDINATOR)
    assert exported(lag) == {("partitions_left_out",): 0}
    assert collect(lag).groups == ()


async def test_rounds_begin_with_a_scrape_and_end_when_nobody_scrapes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lag_module, "INTERVAL_S", 0.0)
    monkeypatch.setattr(lag_module, "KEEP_S", 600.0)
    led, logs = Led(), Logs()
    led.commit("g", {P0: 0})
    lag = collection(led, logs)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(lag.run())
        await asyncio.to_thread(len, ())  # a turn of the loop: it runs
        assert not logs.asked_bounds, "nobody has asked"
        await asyncio.to_thread(exported, lag)
        await wait_until_async(lambda: len(logs.asked_bounds) > 1, what="rounds begin")
        assert lag.snapshot is not None
        monkeypatch.setattr(lag_module, "KEEP_S", 0.0)
        await wait_until_async(lambda: lag.snapshot is None, what="rounds end")
        rounds = len(logs.asked_bounds)
        monkeypatch.setattr(lag_module, "KEEP_S", 600.0)
        lag.scraped()
        await wait_until_async(lambda: len(logs.asked_bounds) > rounds, what="they begin again")
        running.cancel()
    assert logs.closed


async def test_a_round_that_fails_leaves_nothing_stale_and_ends_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lag_module, "INTERVAL_S", 0.0)
    led, logs = Led(), Logs()
    led.commit("g", {P0: 0})
    lag = collection(led, logs)
    lag.scraped()
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(lag.run())
        await wait_until_async(lambda: lag.snapshot is not None, what="rounds begin")
        led.machine = None  # type: ignore[assignment]
        await wait_until_async(lambda: lag.snapshot is None, what="a round failed")
        assert not running.done()
        running.cancel()


# ---------------------------------------------------------------- real processes


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    path = tmp_path_factory.mktemp("lag")
    with Cluster(path, brokers=3, launcher=LAUNCHER, controller_config=PATIENT) as running:
        yield running


def scraped(cluster: Cluster, group: str) -> dict[str, dict[tuple[str, ...], float]]:
    """The group's samples of all brokers, by short name and the other labels, by label name."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for port in cluster.metrics_ports.values():
        text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read().decode()
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                labels = dict(sample.labels)
                if labels.pop("group", None) == group:
                    key = tuple(labels[name] for name in sorted(labels))
                    seen = found.setdefault(sample.name.removeprefix("penstock_group_"), {})
                    assert key not in seen, "told by two brokers"
                    seen[key] = sample.value
    return found


def described(cluster: Cluster, group: str) -> Any:
    words = ("group", "describe", group, "-o", "json", "--bootstrap", cluster.bootstrap)
    done = command_line.run(*words)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_prometheus_hears_the_same_lag_as_group_describe(cluster: Cluster) -> None:
    cluster.create_topic("orders", partitions=4)
    hour_s = 3_600
    with Producer(cluster.bootstrap) as producer:
        for partition in range(3):
            for _ in range(5):
                ago_ms = now_ms() - 1_000 * hour_s
                producer.send("orders", b"v", partition=partition, timestamp_ms=ago_ms).result(120)
    with Groups(cluster) as groups:
        groups.commit("billing", {("orders", 0): 5, ("orders", 1): 2, ("orders", 2): 0})
        member = groups.join("idlers", "orders")
        wait_until(lambda: len(member.owned) == 4, what="the member owns all")

        def told() -> dict[str, dict[tuple[str, ...], float]] | None:
            """The samples of a round in which every leader answered in time."""
            samples = scraped(cluster, "billing")
            return samples if len(samples.get("partition_lag_seconds", {})) == 3 else None

        seen = wait_until(told, what="a round is over")
        shown = described(cluster, "billing")
        partitions: dict[tuple[str, ...], Any] = {
            (str(p["partition"]), "orders"): p for p in shown["partitions"]
        }
        assert seen["partition_lag_records"] == {k: p["lag"] for k, p in partitions.items()}
        assert sorted(seen["partition_lag_records"].values()) == [0, 3, 5]
        assert seen["committed_offset"] == {k: p["committed"] for k, p in partitions.items()}
        for key, waits_s in seen["partition_lag_seconds"].items():
            # Not read at the same moment: a command starts in between, and a round may pass.
            assert waits_s == pytest.approx(partitions[key]["lag_s"], abs=hour_s / 2)
            assert waits_s == 0 if key == ("0", "orders") else waits_s >= hour_s
        assert seen["members"] == {(): 0}
        assert seen["state"] == {("Empty",): 1}
        expected = {"members": {(): 1}, "state": {("Stable",): 1}, "pending_offsets": {(): 0}}
        wait_until(lambda: scraped(cluster, "idlers") == expected, what="no offset, no lag")
        member.leave()

        groups.commit("billing", {("orders", 1): 5})

        def seen_by_a_round() -> bool:
            records = scraped(cluster, "billing").get("partition_lag_records", {})
            return records.get(("1", "orders")) == 0

        wait_until(seen_by_a_round, what="the next round sees the commit")

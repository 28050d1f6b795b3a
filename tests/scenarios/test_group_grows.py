"""A group under load grows from 3 members to 30 and shrinks to 3: nothing is lost, nothing shared.

Thirty partitions, written all the time. Three residents share them; 27 guests join and leave in
good order. Every member writes down what it owns and gets, and the judge of `penstock verify`
looks at all of it: every record was delivered (I19), no partition had two owners, commits told the
truth (I18). Beyond that: partitions that a resident is to keep are never taken from it.
"""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.cluster import Cluster
from support.load import Load, MakeLoad, assert_nothing_noticed
from support.waiting import wait_until

from penstock.client import Admin, ConsumedBatch, GroupState
from penstock.verify.group_readers import GroupReaders, GroupReadersConfig
from penstock.verify.history import read_history

GROUP = "grows"
PARTITIONS = 30
RESIDENTS, GUESTS = 3, 27


class Guests:
    """Members beside the workload's own, which write into the same history."""

    def __init__(self, load: Load) -> None:
        config = load.config
        self._record_batch = load._workload._record_batch
        self._readers = GroupReaders(
            GroupReadersConfig(config.bootstrap, config.topic, GROUP, GUESTS, 0.0, config.settle_s),
            load.watch,
            self._record,
            load._workload._now_ms,
        )
        self.batches: Counter[str] = Counter()
        """How many each guest has got."""

    @contextmanager
    def staying(self) -> Iterator[None]:
        """They join and work; at the end all leave, and are gone."""
        threads = [
            threading.Thread(target=self._readers.run_member, args=[f"guest-{number}"])
            for number in range(GUESTS)
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._readers.abandon()
            for thread in threads:
                thread.join(timeout=120)
            assert not any(thread.is_alive() for thread in threads)

    def _record(self, reader: str, kind: str, batch: ConsumedBatch) -> None:
        self._record_batch(reader, kind, batch)
        self.batches[reader] += 1


def shares(admin: Admin) -> list[int]:
    """How many partitions each member has, once nothing is to move any more; else []."""
    group = admin.describe_group(GROUP, include_offsets=False)
    if group.state is not GroupState.STABLE:
        return []
    return sorted(len(member.assigned) for member in group.members)


def moves(history: Path, member: str, since_ms: float, until_ms: float) -> dict[int, list[str]]:
    """By partition: how it came to a member and left it, in order."""
    found: dict[int, list[str]] = {}
    for event in read_history(history):
        of_member = event["e"] in {"owns", "leaves"} and event["r"] == member
        if of_member and since_ms <= event["t"] < until_ms:
            found.setdefault(event["p"], []).append(event["e"])
    return found


def test_three_members_thirty_and_three_again(cluster: Cluster, make_load: MakeLoad) -> None:
    share = PARTITIONS // RESIDENTS
    with (
        Admin(cluster.bootstrap) as admin,
        make_load(partitions=PARTITIONS, keys=PARTITIONS // 2, group=GROUP, members=3) as load,
    ):
        wait_until(lambda: shares(admin) == [share] * 3, what="three members share everything")
        three_ms = load._workload._now_ms()
        guests = Guests(load)
        with guests.staying():
            wait_until(
                lambda: shares(admin) == [1] * PARTITIONS,
                what="thirty members have a partition each",
                timeout_s=120,
            )
            described = admin.describe_group(GROUP, include_offsets=False)
            kept = {
                member.client_id: [where.partition for where in member.assigned]
                for member in described.members
            }
            wait_until(lambda: len(guests.batches) == GUESTS, what="every guest gets records")
        wait_until(lambda: shares(admin) == [share] * 3, what="three members have it all again")
        three_again_ms = load._workload._now_ms()
        load.wait_writing()
        verdict = load.judge()
        assert not admin.describe_group(GROUP, include_offsets=False).members
    assert_nothing_noticed(verdict)
    assert verdict.delivered >= verdict.final > 0
    for resident in (f"member-{number}.0" for number in range(RESIDENTS)):
        (stayed,) = kept[resident]
        moved = moves(load.history, resident, three_ms, three_again_ms)
        assert "leaves" not in moved.pop(stayed, []), "what it is to keep is never taken from it"
        assert sum("leaves" in what for what in moved.values()) == share - 1

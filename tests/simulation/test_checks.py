"""Cases that the simulator's checks must tell apart, on documents written by hand."""

import re
from dataclasses import replace
from typing import cast

import pytest

from penstock.core.batch import Batch, BatchHeader
from penstock.core.control.documents import (
    CLUSTER_KEY,
    BrokerRegistration,
    ClusterDocument,
    Tombstone,
    TopicDocument,
    encode_cluster,
    encode_topic,
    topic_key,
)
from penstock.core.control.journal.contract import Journal
from penstock.core.control.partition import PartitionDocument
from penstock.core.types import (
    NO_LEADER,
    BrokerId,
    ControllerEpoch,
    LeaderEpoch,
    Offset,
    PartitionState,
    ProducerId,
    ReplicaKey,
)
from penstock_sim.canon import Canon
from penstock_sim.latest_reader import difference
from penstock_sim.scheduler import RuleError
from penstock_sim.shell import Shell
from penstock_sim.world import TOPIC, TOPIC_ID, World

KEY = ReplicaKey(TOPIC_ID, 0)
EVERYONE = (BrokerId(1), BrokerId(2), BrokerId(3))


class Cluster:
    """Three brokers with one partition, which all of them know; changes are journaled."""

    def __init__(self) -> None:
        self.world = World(1, brokers=3, moves=False)
        self.checks = self.world.checks
        assert tuple(self.world.brokers) == EVERYONE
        self.runs = dict.fromkeys(EVERYONE, 1)
        for broker in self.world.brokers.values():
            broker.shell, broker.incarnation = cast("Shell", object()), 1  # a run that does nothing
            broker.directory.set_intact(True)
        begun = document(leader=1, epoch=1, isr=EVERYONE, version=1)
        self.checks.metadata_changed(topic(begun, 1))
        self.checks.told(KEY, begun.state)
        self._sequence = 0

    def all_lose_power(self) -> None:
        """All brokers lose power and restart."""
        for broker in self.world.brokers:
            self.lose_power(broker)

    def lose_power(self, broker_id: int) -> None:
        """One broker loses power and restarts."""
        broker = self.world.brokers[BrokerId(broker_id)]
        broker.directory.set_intact(False)
        self.checks.broker_down(broker)
        broker.incarnation = 2

    def journal(
        self,
        changed: PartitionDocument,
        *registered: int,
        answered: bool = True,
        controller_epoch: int = 1,
    ) -> None:
        """A majority stores `changed` and the registration of these brokers' second runs.

        `answered`: the controller knows it.
        """
        self.runs |= {BrokerId(broker): 2 for broker in registered}
        cluster, version = self._next_cluster(self.runs)
        texts = {
            topic_key(TOPIC): encode_topic(topic(changed, version)),
            CLUSTER_KEY: encode_cluster(cluster),
        }
        for keeper in (BrokerId(1), BrokerId(2)):
            journal = Journal(ControllerEpoch(controller_epoch), self._sequence, texts)
            self.checks.journal_kept(keeper, journal)
        if answered:
            self.checks.adopted(controller_epoch, [topic(changed, version)])

    def store(
        self,
        changed: PartitionDocument,
        *registered: int,
        learned: bool = False,
        deleted: bool = False,
    ) -> None:
        """A write to the store without an answer; or what a journal tells a new controller.

        `deleted`: the document of the cluster says that the topic is deleted; its own is removed
        later.
        """
        runs = self.runs | {BrokerId(broker): 2 for broker in registered}
        cluster, version = self._next_cluster(runs)
        if deleted:
            cluster = replace(cluster, tombstones=(Tombstone(TOPIC_ID, version),))
        self.checks.learning = 1 if learned else None
        self.checks.metadata_changed(topic(changed, version))
        self.checks.registrations_changed(cluster)
        self.checks.learning = None

    def _next_cluster(self, runs: dict[BrokerId, int]) -> tuple[ClusterDocument, int]:
        self._sequence += 1
        version = 1 + self._sequence
        cluster = ClusterDocument(
            cluster_id="simulated-cluster",
            controller_epoch=ControllerEpoch(1),
            metadata_version=version,
            brokers={one: registration(one, run) for one, run in runs.items()},
        )
        return cluster, version


def batch(base: int, count: int, *, sequence: int) -> Batch:
    header = BatchHeader(
        record_count=count,
        first_timestamp_ms=0,
        max_timestamp_ms=0,
        uncompressed_bytes=0,
        crc=0,
        producer_id=ProducerId(7),
        producer_epoch=0,
        base_sequence=sequence,
        base_offset=Offset(base),
        leader_epoch=LeaderEpoch(1),
    )
    return Batch(header, b"x")


def registration(broker: BrokerId, run: int) -> BrokerRegistration:
    return BrokerRegistration(
        broker_id=broker,
        host="simulated",
        port=9000,
        rack="",
        directory_id=f"directory-{broker}",
        incarnation=f"{broker}.{run}",
        alive=True,
    )


def topic(partition: PartitionDocument, version: int) -> TopicDocument:
    return TopicDocument(
        name=TOPIC,
        topic_id=TOPIC_ID,
        controller_epoch=ControllerEpoch(1),
        metadata_version=version,
        configs={},
        partitions=(partition,),
    )


def document(
    *, leader: int, epoch: int, isr: tuple[int, ...], version: int, lossy: tuple[int, ...] = ()
) -> PartitionDocument:
    state = PartitionState(
        leader=BrokerId(leader),
        leader_epoch=LeaderEpoch(epoch),
        isr=tuple(map(BrokerId, isr)),
        replicas=EVERYONE,
        version=version,
    )
    return PartitionDocument(state, lossy=tuple(map(BrokerId, lossy)))


def test_the_last_holder_may_lead_without_its_data_by_the_journal_before() -> None:
    """One journal removes two from the ISR; the next one elects the third, then alone."""
    cluster = Cluster()
    cluster.all_lose_power()
    cluster.journal(document(leader=NO_LEADER, epoch=2, isr=(2,), version=4, lossy=(3, 1)), 1, 3)
    cluster.journal(document(leader=2, epoch=3, isr=(2,), version=6), 2)
    assert KEY in cluster.checks.lossy


def test_a_broker_without_its_data_may_not_lead_while_others_hold_it() -> None:
    cluster = Cluster()
    second = cluster.world.brokers[2]
    second.directory.set_intact(False)
    cluster.checks.broker_down(second)
    second.incarnation = 2
    with pytest.raises(RuleError, match=r"I7: b2 lost data, .* not \{1, 3\}"):
        cluster.journal(document(leader=2, epoch=2, isr=(2,), version=2), 2)


def test_a_broker_without_its_data_may_keep_no_seat_in_a_topic_that_never_changed() -> None:
    cluster = Cluster()
    cluster.all_lose_power()
    begun = document(leader=1, epoch=1, isr=EVERYONE, version=1)
    cluster.store(begun, 2, deleted=True)
    assert (2, KEY) not in cluster.checks.lost
    with pytest.raises(RuleError, match=r"I7: b3 lost data, has a seat"):
        cluster.store(begun, 3)


def test_a_journal_without_an_answer_may_be_replaced_by_the_next() -> None:
    cluster = Cluster()
    cluster.journal(document(leader=1, epoch=1, isr=(1, 3), version=2), answered=False)
    cluster.journal(document(leader=1, epoch=1, isr=EVERYONE, version=1))


def test_no_journal_undoes_one_that_its_controller_knows_to_be_kept() -> None:
    cluster = Cluster()
    cluster.journal(document(leader=2, epoch=2, isr=(2, 3), version=2))
    with pytest.raises(RuleError, match=r"I21|I1:"):
        cluster.journal(document(leader=3, epoch=2, isr=(3,), version=3))


@pytest.mark.parametrize("told", [False, True])
def test_a_journal_may_lack_what_a_former_controller_stored_beside_the_take_over(
    *, told: bool
) -> None:
    """Its successor has read before that. Nobody acts on it, unless a broker was told."""
    cluster = Cluster()
    grown = document(leader=1, epoch=1, isr=(1, 3), version=3)
    cluster.store(grown)
    cluster.checks.adopted(1, [topic(grown, 2)])
    older = document(leader=1, epoch=1, isr=(1,), version=2)
    if told:
        cluster.checks.told(KEY, grown.state)
        with pytest.raises(RuleError, match="I21: "):
            cluster.journal(older, controller_epoch=2)
    else:
        cluster.journal(older, controller_epoch=2)


def test_a_registration_that_a_journal_takes_back_was_never_told() -> None:
    cluster = Cluster()
    cluster.all_lose_power()
    cluster.store(document(leader=NO_LEADER, epoch=2, isr=(2, 3), version=2, lossy=(1,)), 1)
    assert (1, KEY) not in cluster.checks.lost
    cluster.store(document(leader=NO_LEADER, epoch=2, isr=EVERYONE, version=2), learned=True)
    assert (1, KEY) in cluster.checks.lost


@pytest.mark.parametrize("others", [(1, 3), (1,)])
def test_a_journal_may_follow_what_was_before_a_loss_that_a_late_write_dealt_with(
    others: tuple[int, ...],
) -> None:
    """No controller learned of that write, so the journal handles the same losses again."""
    cluster = Cluster()
    for broker in (2, *others):
        cluster.lose_power(broker)
    late = document(leader=NO_LEADER, epoch=2, isr=(2,) if 3 in others else (2, 3), version=2)
    cluster.store(late, *others)
    elected = document(leader=2, epoch=3, isr=(2,), version=4)
    if 3 in others:
        cluster.journal(elected, 2, *others)
        assert KEY in cluster.checks.lossy
    else:
        with pytest.raises(RuleError, match=r"I7: b2 lost data, .* not \{3\}"):
            cluster.journal(elected, 2, *others)


def test_a_history_that_goes_on_behind_a_gap_may_begin_inside_a_batch() -> None:
    """The log start differs from that of the last replica left; its producers continued."""
    canon = Canon()
    canon.extend(batch(0, 10, sequence=0), "b1")
    straddling = batch(38, 5, sequence=70)
    canon.skip_to(41, [batch(33, 5, sequence=65), straddling])
    assert (canon.end, canon.by_base.get(38)) == (43, straddling)
    canon.extend(batch(43, 2, sequence=75), "b1")
    with pytest.raises(RuleError, match="I9"):
        canon.extend(batch(45, 2, sequence=80), "b1")
    canon.skip_to(60, [])
    assert canon.end == 60


# ---------------------------------------------------------------- readers from the end

OWN = [batch(base, 5, sequence=base) for base in (10, 15, 20)]


def test_a_reader_is_given_all_that_is_for_it_in_order() -> None:
    assert difference(OWN, OWN, []) == ""
    assert difference(OWN[1:], OWN[1:], []) == ""


@pytest.mark.parametrize(
    ("seen", "told"),
    [
        ([OWN[0], OWN[2]], "is given .*base_offset=20.*next is .*base_offset=15"),
        ([OWN[0], OWN[1]], "is not given .*base_offset=20"),
        ([OWN[0], OWN[1], OWN[1], OWN[2]], "is given .*base_offset=15.*next is .*base_offset=20"),
        ([*OWN, OWN[2]], "is given .*base_offset=20.*not for it, or comes again"),
        ([*OWN, batch(25, 5, sequence=25)], "is given .*base_offset=25.*not for it"),
    ],
    ids=["one is missing", "the last is missing", "twice", "the last twice", "not for it"],
)
def test_a_reader_is_not_given_less_nor_more(seen: list[Batch], told: str) -> None:
    assert re.search(told, difference(OWN, seen, []))


def test_what_retention_took_may_be_missing() -> None:
    """Also of a batch that contains the new log start: the rest of it is read, or not."""
    gap = range(10, 17)
    assert difference(OWN, [OWN[2]], [gap]) == ""
    assert difference(OWN, OWN[1:], [gap]) == ""
    assert re.search("is not given .*base_offset=20", difference(OWN, OWN[1:2], [gap]))

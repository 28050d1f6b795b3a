"""Commits that wait share calls: what is stored and who hears what, as if they came alone."""

import random

import pytest

from penstock.client.group.commit_queue import MERGED_PARTITIONS_MAX, CommitQueue
from penstock.client.group.model import OffsetAndMetadata
from penstock.core.types import TopicPartition
from penstock.errors import ClusterError, ErrorCode, PenstockError

PATIENT_S = 30.0
P, Q = TopicPartition("t", 0), TopicPartition("t", 1)


class Callers:
    """Commits put into a queue, and what each of them has heard."""

    def __init__(self) -> None:
        self.queue = CommitQueue()
        self.heard: dict[str, list[PenstockError | None]] = {}

    def commit(self, who: str, timeout_s: float = PATIENT_S, **offsets: int) -> None:
        where = {"p": P, "q": Q}
        wanted = {where[name]: OffsetAndMetadata(offset) for name, offset in offsets.items()}
        self.heard[who] = []
        self.queue.add(wanted, timeout_s, self.heard[who].append)


def refused(what: str) -> ClusterError:
    return ClusterError(what, ErrorCode.OFFSET_WENT_BACK)


def test_the_newest_offset_of_each_partition_is_sent_and_everyone_hears_once() -> None:
    callers = Callers()
    callers.commit("a", p=1)
    callers.commit("b", q=7)
    callers.commit("c", p=3, q=7)
    batch = callers.queue.take()
    assert not callers.queue
    assert {where: offset.offset for where, offset in batch.offsets.items()} == {P: 3, Q: 7}
    batch.answer({})
    batch.fail(refused("too late"))
    assert callers.heard == {"a": [None], "b": [None], "c": [None]}


def test_a_refused_partition_is_heard_of_by_those_who_committed_it() -> None:
    callers = Callers()
    callers.commit("a", p=1)
    callers.commit("b", q=7)
    callers.commit("c", q=8, p=3)
    no = refused("q")
    callers.queue.take().answer({Q: no})
    assert callers.heard == {"a": [None], "b": [no], "c": [no]}


def test_a_commit_that_is_not_repeated_does_not_wait_with_one_that_is() -> None:
    callers = Callers()
    callers.commit("a", p=1)
    callers.queue.add({Q: OffsetAndMetadata(7)}, PATIENT_S, lambda _: None, repeats=False)
    assert [callers.queue.take().repeats for _ in range(2)] == [True, False]


def test_who_has_a_partition_that_is_sent_again_hears_later_and_once() -> None:
    callers = Callers()
    callers.commit("a", p=1)
    callers.commit("b", q=7, p=1)
    no, batch = refused("q"), callers.queue.take()
    batch.answer({Q: no}, again={Q})
    assert callers.heard == {"a": [None], "b": []}
    batch.answer({Q: no})
    assert callers.heard == {"a": [None], "b": [no]}


def test_a_call_that_fails_fails_for_all() -> None:
    callers = Callers()
    callers.commit("a", p=1)
    callers.commit("b", q=7)
    no = refused("all")
    callers.queue.take().fail(no)
    assert callers.heard == {"a": [no], "b": [no]}


def test_going_back_is_a_call_of_its_own_and_in_turn() -> None:
    callers = Callers()
    callers.commit("a", p=5)
    callers.commit("b", p=4, q=1)
    callers.commit("c", p=6)
    sent = [callers.queue.take().offsets for _ in range(2)]
    assert [{w: o.offset for w, o in offsets.items()} for offsets in sent] == [
        {P: 5},
        {P: 6, Q: 1},
    ]
    assert not callers.queue


def test_what_is_on_its_way_is_covered_until_its_call_is_over() -> None:
    callers = Callers()
    callers.commit("a", p=5)
    callers.queue.take()
    callers.commit("b", q=2)
    asked = [
        (where, OffsetAndMetadata(offset)) for where, offset in ((P, 5), (P, 6), (Q, 2), (Q, 3))
    ]
    covered = callers.queue.covers
    assert [covered(*each) for each in asked] == [True, False, True, False]
    rewound = OffsetAndMetadata(3, rewind_epoch=1)
    assert not covered(P, rewound), "its reader has gone back since"
    callers.queue.over()
    assert [covered(*each) for each in asked] == [False, False, True, False]


def test_a_commit_from_before_its_reader_went_back_is_not_sent_in_place_of_a_newer_one() -> None:
    queue = CommitQueue()
    for order in ((2, 5), (1, 20), (2, 6), (3, 1)):
        offset = OffsetAndMetadata(order[1], rewind_epoch=order[0])
        queue.add({P: offset}, 30.0, lambda _: None)
    assert [queue.take().offsets[P].order for _ in range(4)] == [(2, 5), (1, 20), (2, 6), (3, 1)]


def test_offsets_of_a_former_topic_of_this_name_are_not_mixed_with_those_of_the_present() -> None:
    callers = Callers()
    former = OffsetAndMetadata(9, topic_id="former", tenure=1)
    present = OffsetAndMetadata(3, topic_id="now", tenure=2)
    heard: list[PenstockError | None] = []
    callers.queue.add({P: former}, PATIENT_S, heard.append)
    assert not callers.queue.covers(P, present)
    later = OffsetAndMetadata(12, topic_id="now", tenure=2)
    callers.queue.add({P: later}, PATIENT_S, heard.append)
    assert callers.queue.covers(P, present)
    assert callers.queue.take().offsets == {P: former}
    assert callers.queue.covers(P, present)
    assert callers.queue.take().offsets == {P: later}


def test_nobody_waits_as_long_as_somebody_else_would() -> None:
    callers = Callers()
    callers.commit("a", p=1)
    callers.commit("b", timeout_s=5.0, p=2)
    assert callers.queue.take().timeout_s == PATIENT_S
    assert callers.queue.take().timeout_s == 5.0


def test_a_merged_call_has_a_size_and_a_large_commit_goes_alone() -> None:
    queue = CommitQueue()
    many = [TopicPartition("t", number) for number in range(2 * MERGED_PARTITIONS_MAX)]
    one = OffsetAndMetadata(1)
    queue.add(dict.fromkeys(many, one), PATIENT_S, lambda _: None)
    queue.add({TopicPartition("u", 0): one}, PATIENT_S, lambda _: None)
    for where in many:
        queue.add({where: one}, PATIENT_S, lambda _: None)
    sizes = []
    while queue:
        sizes.append(len(queue.take().offsets))
    assert sizes == [
        2 * MERGED_PARTITIONS_MAX,
        MERGED_PARTITIONS_MAX,
        MERGED_PARTITIONS_MAX,
        1,
    ]


class Stored:
    """What a coordinator keeps: an offset never goes back."""

    def __init__(self) -> None:
        self.offsets: dict[TopicPartition, int] = {}

    def commit(self, offsets: dict[TopicPartition, OffsetAndMetadata]) -> set[TopicPartition]:
        """The partitions that are refused."""
        no = {w for w, new in offsets.items() if new.offset < self.offsets.get(w, 0)}
        self.offsets.update({w: new.offset for w, new in offsets.items() if w not in no})
        return no


@pytest.mark.parametrize("seed", range(40))
def test_merged_commits_store_what_single_ones_would(seed: int) -> None:
    """Only a commit that would be refused alone may fare better: a later one has made it true."""
    rng = random.Random(seed)
    queue, merged, single = CommitQueue(), Stored(), Stored()
    heard: list[int] = []

    def commit(number: int, offsets: dict[TopicPartition, OffsetAndMetadata]) -> None:
        alone = not single.commit(offsets)

        def done(error: PenstockError | None) -> None:
            heard.append(number)
            if error is None:
                assert all(merged.offsets[w] >= new.offset for w, new in offsets.items())
            else:
                assert not alone

        queue.add(offsets, rng.choice((PATIENT_S, PATIENT_S, 5.0)), done)

    def send() -> None:
        batch = queue.take()
        batch.answer({where: refused(str(where)) for where in merged.commit(batch.offsets)})

    at = 0
    for number in range(200):
        at = max(0, at + rng.randint(-1, 4))
        places = [where for where in (P, Q) if rng.random() < 0.7]
        commit(number, {where: OffsetAndMetadata(at + rng.randint(0, 2)) for where in places})
        while queue and rng.random() < 0.3:
            send()
    while queue:
        send()
    assert heard == list(range(200)), "one answer each, in the order of the commits"
    assert merged.offsets == single.offsets

"""What counts as handed out, and what an automatic commit may cover (I17, I18)."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.client.consumer.assignment import Assignment
from penstock.client.consumer.fetch_state import FetchState
from penstock.client.group.model import OffsetAndMetadata
from penstock.client.model import ConsumedBatch, Record
from penstock.core.batch import Batch
from penstock.core.records import build_batch, encode_columns
from penstock.core.types import LeaderEpoch, Offset, TopicPartition
from penstock.errors import OffsetOutOfRangeError, OffsetRange

HERE = TopicPartition("t", 0)
THERE = TopicPartition("t", 1)
RECORDS = 30


def batch(base: int, count: int, epoch: int = 1) -> Batch:
    columns = encode_columns([b"%d" % (base + index) for index in range(count)], timestamps_ms=1)
    return build_batch(columns).stamped(Offset(base), LeaderEpoch(epoch), 0)


def assigned(*places: TopicPartition, committed: int = -1, rewind_epoch: int = 1) -> Assignment:
    made = Assignment()
    for where in places:
        state = FetchState(where, "id")
        state.seek(0)
        made.add(
            state,
            None if committed < 0 else OffsetAndMetadata(committed, rewind_epoch=rewind_epoch),
        )
        refill(made, where)
    return made


def refill(made: Assignment, where: TopicPartition) -> None:
    """Ten records a batch, from wherever the partition is; the log ends at RECORDS."""
    state = made.states[where]
    while state.fetch_offset < RECORDS:
        base = state.fetch_offset // 10 * 10
        state.accept(state.fetch_offset, [batch(base, 10, epoch=base // 10 + 1)], RECORDS)


def covered(made: Assignment, *, only_done: bool = True) -> dict[TopicPartition, int]:
    return {at: o.offset for at, o in made.to_commit(only_done=only_done).items()}


def test_an_automatic_commit_covers_what_an_earlier_poll_handed_out() -> None:
    made = assigned(HERE)
    made.poll_began()
    made.collect(15)
    assert covered(made) == {HERE: 0}, "the caller has them, and may fail"
    assert covered(made, only_done=False) == {HERE: 15}, "the caller says that it is done"
    made.poll_began()
    assert covered(made) == {HERE: 15}
    made.collect(5)
    assert covered(made) == {HERE: 15}


def test_the_place_where_a_group_begins_is_worth_a_commit() -> None:
    made = assigned(HERE)
    made.states[HERE].seek(7)
    made.poll_began()
    assert covered(made) == {HERE: 7}


def orders(made: Assignment, *, only_done: bool = False) -> list[tuple[int, int]]:
    return [offset.order for offset in made.to_commit(only_done=only_done).values()]


def test_a_seek_back_is_committed_in_a_new_rewind_epoch() -> None:
    made = assigned(HERE)
    made.poll_began()
    made.collect(15)
    made.committed(HERE, OffsetAndMetadata(15, rewind_epoch=1))
    made.seek(HERE, 3)
    assert orders(made, only_done=True) == [(2, 3)], "between the seek and the poll after it"
    assert orders(made) == [(2, 3)]
    made.poll_began()
    refill(made, HERE)
    made.collect(2)
    assert orders(made, only_done=True) == [(2, 3)], "the two in hand are not done"
    assert orders(made) == [(2, 5)]
    made.committed(HERE, OffsetAndMetadata(5, rewind_epoch=2))
    made.committed(HERE, OffsetAndMetadata(15, rewind_epoch=1))
    assert orders(made) == [], "an answer that comes late changes nothing"
    made.seek(HERE, 20)
    made.poll_began()
    assert orders(made) == [(2, 20)], "forwards needs no other epoch"


def test_a_seek_does_not_count_what_the_caller_still_has_as_done() -> None:
    made = assigned(HERE)
    made.poll_began()
    made.collect(5)
    made.seek(HERE, 20)
    assert orders(made, only_done=True) == [(1, 0)]
    made.seek(HERE, 10)
    assert orders(made, only_done=True) == [(2, 0)]


def test_a_return_to_the_committed_offset_begins_no_epoch() -> None:
    """A deposed coordinator may not know it: a commit must then be refused (I15)."""
    made = assigned(HERE)
    made.poll_began()
    made.collect(15)
    made.seek(HERE, 3)
    made.rewind(HERE, OffsetAndMetadata(8, rewind_epoch=4))
    assert orders(made) == []
    assert orders(made, only_done=True) == []
    made.poll_began()
    refill(made, HERE)
    made.collect(2)
    assert orders(made) == [(4, 10)]


def test_a_log_that_became_shorter_begins_a_rewind_epoch() -> None:
    made = assigned(HERE)
    made.poll_began()
    made.collect(30)
    made.poll_began()
    made.committed(HERE, OffsetAndMetadata(30, rewind_epoch=1))
    state = made.states[HERE]
    gone = OffsetOutOfRangeError("gone", OffsetRange(0, 20))
    assert state.out_of_range(gone, "earliest", 0) is None, "it waits for a while"
    assert state.out_of_range(gone, "earliest", 60_000)
    assert orders(made) == []
    state.looked_up(10)
    assert orders(made, only_done=True) == [(2, 10)], "nothing was returned from there"
    refill(made, HERE)
    made.collect(4)
    assert orders(made, only_done=True) == [(2, 10)]
    assert orders(made) == [(2, 14)]


def test_what_retention_removed_begins_no_rewind_epoch() -> None:
    made = assigned(HERE)
    made.poll_began()
    made.states[HERE].out_of_range(
        OffsetOutOfRangeError("gone", OffsetRange(50, 60)), "earliest", 0
    )
    made.poll_began()
    made.collect(30)
    made.poll_began()
    made.committed(HERE, OffsetAndMetadata(30, rewind_epoch=1))
    state = made.states[HERE]
    assert state.out_of_range(OffsetOutOfRangeError("gone", OffsetRange(50, 60)), "earliest", 0)
    state.looked_up(50)
    made.poll_began()
    assert orders(made) == [(1, 50)]


def test_a_commit_decided_before_the_partition_left_does_not_go_back_later() -> None:
    made = assigned(HERE)
    made.collect(10)
    forwards = made.to_commit(only_done=False)
    made.seek(HERE, 3)
    back = made.to_commit(only_done=False)
    assert made.may_be_sent(back)[HERE].order == (2, 3)
    made.remove(HERE)
    assert made.may_be_sent(back) == {}
    assert made.may_be_sent(forwards)[HERE].order == (1, 10)
    state = FetchState(HERE, "id")
    state.seek(9)
    made.add(state, OffsetAndMetadata(9, rewind_epoch=2))
    assert made.may_be_sent(back) == {}, "epoch 2 is another reader's"
    assert made.may_be_sent(forwards)[HERE].order == (1, 10)
    made.seek(HERE, 2)
    assert made.decided(back)[HERE].order == (3, 3), "given by the user after a seek back"


def test_a_commit_decided_before_a_return_to_the_committed_offset_does_not_go_back() -> None:
    made = assigned(HERE)
    made.collect(10)
    made.seek(HERE, 3)
    back = made.to_commit(only_done=False)
    made.rewind(HERE, OffsetAndMetadata(8, rewind_epoch=1))
    assert made.may_be_sent(back)[HERE].order == (1, 3)


def test_a_stored_way_back_counts_for_who_began_there_or_before() -> None:
    """Of a commit that was stored late, when the partition had left and had come back."""
    made = assigned(HERE)
    late = OffsetAndMetadata(8, rewind_epoch=2)
    assert not made.committed(HERE, late), "nothing was returned yet"
    made.collect(15)
    assert made.committed(HERE, late)
    assert orders(made) == [(2, 15)]
    made.seek(HERE, 9)
    assert orders(made) == [(3, 9)]
    assert not made.committed(HERE, OffsetAndMetadata(8, rewind_epoch=4)), "8 would be skipped"
    assert orders(made) == [(3, 9)]
    made.remove(HERE)
    assert not made.committed(HERE, OffsetAndMetadata(9, rewind_epoch=4))


def test_an_answer_about_a_former_topic_of_this_name_says_nothing_about_the_present_one() -> None:
    made = assigned(HERE)
    made.collect(15)
    former = made.to_commit(only_done=False)
    made.remove(HERE)
    state = FetchState(HERE, "another id")
    state.seek(0)
    made.add(state)
    refill(made, HERE)
    made.collect(5)
    assert not made.committed(HERE, former[HERE])
    present = made.to_commit(only_done=False)
    assert present[HERE].offset == 5
    assert [former[HERE].topic_id, present[HERE].topic_id] == ["id", "another id"]
    assert made.decided({HERE: former[HERE]})[HERE].topic_id == "another id"
    assert made.decided({THERE: former[HERE]})[THERE].topic_id == ""


def test_what_is_committed_is_not_committed_again_nor_is_less() -> None:
    made = assigned(HERE)
    made.poll_began()
    made.collect(15)
    made.committed(HERE, OffsetAndMetadata(15, rewind_epoch=1))
    assert covered(made, only_done=False) == {}
    made.committed(HERE, OffsetAndMetadata(17, rewind_epoch=1))
    assert covered(made, only_done=False) == {}


def test_a_commit_carries_the_leader_epoch_of_the_record_before_it() -> None:
    made = assigned(HERE)
    made.poll_began()
    made.collect(10)
    made.poll_began()
    made.collect(10)
    assert made.to_commit(only_done=True)[HERE].leader_epoch == 1
    assert made.to_commit(only_done=False)[HERE].leader_epoch == 2


def test_records_taken_one_by_one_are_done_when_the_next_is_taken() -> None:
    made = assigned(HERE)
    made.poll_began()
    records = made.one_by_one(made.collect(100))
    assert [next(records).offset for _ in range(4)] == [0, 1, 2, 3]
    assert covered(made) == {HERE: 3}
    assert covered(made, only_done=False) == {HERE: 4}
    assert made.progress(HERE).position == 4


def test_a_loop_that_is_left_skips_nothing() -> None:
    made = assigned(HERE, THERE)
    made.poll_began()
    records = made.one_by_one(made.collect(100))
    for record in records:
        if (record.topic, record.partition, record.offset) == ("t", 0, 12):
            break
    made.poll_began()
    for where in (HERE, THERE):
        refill(made, where)
    again = made.collect(100)
    assert min(b.first_offset for b in again if b.partition == 0) == 13
    assert min(b.first_offset for b in again if b.partition == 1) == 0
    assert list(records) == [], "the old loop is over"


def test_a_partition_that_goes_away_ends_its_part_of_a_loop() -> None:
    made = assigned(HERE, THERE)
    made.poll_began()
    seen: list[Record] = []
    for record in made.one_by_one(made.collect(100)):
        seen.append(record)
        if record.offset == 4 and record.partition == 0:
            made.remove(HERE)
    assert [r.offset for r in seen if r.partition == 0] == [0, 1, 2, 3, 4]
    assert len([r for r in seen if r.partition == 1]) == RECORDS


def test_a_pause_inside_a_loop_holds_and_loses_nothing() -> None:
    made = assigned(HERE, THERE)
    made.poll_began()
    seen: list[tuple[int, int]] = []
    for record in made.one_by_one(made.collect(100)):
        seen.append((record.partition, record.offset))
        if seen[-1] == (0, 4):
            made.pause(HERE)
    assert seen == [(0, n) for n in range(5)] + [(1, n) for n in range(RECORDS)]
    assert made.progress(HERE).position == 5
    made.poll_began()
    refill(made, HERE)
    assert made.collect(100) == [], "it is paused"
    made.states[HERE].paused = False
    assert [record.offset for record in made.one_by_one(made.collect(100))][:2] == [5, 6]


def test_a_seek_inside_a_loop_holds_and_a_pause_loses_nothing() -> None:
    made = assigned(HERE, THERE)
    made.poll_began()
    for record in made.one_by_one(made.collect(100)):
        if (record.partition, record.offset) == (0, 5):
            made.seek(HERE, 2)
        if record.partition == 1:
            made.pause(THERE)
    made.poll_began()
    assert made.progress(HERE).position == 2
    assert made.progress(THERE).position == 1


class Reader:
    """A user that checks what it is handed: every record once, in order, and commits behind it."""

    def __init__(self) -> None:
        self.made = assigned(HERE, THERE)
        self.taken: dict[TopicPartition, list[int]] = {HERE: [], THERE: []}
        self.in_hand: dict[TopicPartition, int] = {}
        self.stored = dict.fromkeys(self.taken, -1)

    def note(self, where: TopicPartition, offset: int) -> None:
        assert offset == len(self.taken[where]), "no skip, no repetition"
        self.taken[where].append(offset)

    def begin(self, count: int) -> list[ConsumedBatch]:
        self.in_hand.clear()
        self.made.poll_began()
        for where in self.taken:
            refill(self.made, where)
        return self.made.collect(count)

    def poll(self, count: int) -> None:
        for got in self.begin(count + 1):
            self.in_hand.setdefault(got.topic_partition, got.first_offset)
            for offset in got.offsets():
                self.note(got.topic_partition, offset)

    def loop(self, count: int) -> None:
        records = self.made.one_by_one(self.begin(100))
        for _ in range(count):
            record = next(records, None)
            if record is None:
                self.in_hand.clear()  # whoever asks for one more is done with the last
                break
            where = TopicPartition(record.topic, record.partition)
            self.in_hand = {where: record.offset}
            self.note(where, record.offset)

    def commit(self, *, only_done: bool) -> None:
        for where, offset in covered(self.made, only_done=only_done).items():
            limit = len(self.taken[where])
            if only_done:
                limit = self.in_hand.get(where, limit)
            assert self.stored[where] < offset <= limit, "never ahead, never back"
            self.made.committed(where, OffsetAndMetadata(offset, rewind_epoch=1))
            self.stored[where] = offset


@given(
    st.lists(st.tuples(st.sampled_from(["poll", "loop", "auto", "all"]), st.integers(0, 12))),
)
def test_every_record_comes_once_in_order_and_commits_stay_behind(
    steps: list[tuple[str, int]],
) -> None:
    reader = Reader()
    for what, number in steps:
        match what:
            case "poll":
                reader.poll(number)
            case "loop":
                reader.loop(number)
            case _:
                reader.commit(only_done=what == "auto")


def test_a_reader_that_does_not_know_its_rewind_epoch_commits_by_offset_alone() -> None:
    """Its coordinator was of an older release. A number of its own might be too low later."""
    made = assigned(HERE, committed=20, rewind_epoch=0)
    made.seek(HERE, 5)
    assert made.progress(HERE).rewind_epoch == 0
    assert covered(made, only_done=False) == {}

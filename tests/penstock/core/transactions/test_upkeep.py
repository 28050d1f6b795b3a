"""Limits, what expires, what is told about transactions, and in which order things leave."""

from support.transaction_desk import GROUP, P0, P1, TIME_MS, U0, Desk, refused

from penstock.core.transactions import TransactionConfig, TransactionCoordinator
from penstock.core.transactions import contract as c
from penstock.core.transactions.config import coordinator_partition
from penstock.core.transactions.contract_views import (
    DescribeRequested,
    LedgersRequested,
    ListRequested,
    TransactionState,
)
from penstock.core.transactions.records import (
    BranchKey,
    IdKey,
    LedgerKey,
    PartitionParticipant,
    encode_key,
)
from penstock.core.types import ProducerId, TopicId
from penstock.errors import ErrorCode

DAY_MS = 86_400_000
RARELY = TransactionConfig(sweep_interval_ms=DAY_MS // 2)

# ---------------------------------------------------------------- limits


def test_so_many_ids_and_no_more() -> None:
    desk = Desk(TransactionConfig(ids_max=2))
    desk.init("a")
    desk.begin(name="b")
    with refused(ErrorCode.OVERLOADED, "2 transactional ids"):
        desk.init("c")
    with refused(ErrorCode.OVERLOADED, "2 transactional ids"):
        desk.begin(name="c")
    desk.init("a", instance="another")
    desk.begin(name="b", run="r2")
    desk.init("b")


def test_so_many_open_and_no_more() -> None:
    desk = Desk(TransactionConfig(open_max=2))
    one, two = desk.init("a"), desk.init("b")
    desk.join(one, P0, "a")
    desk.begin()
    with refused(ErrorCode.OVERLOADED, "2 transactions are open"):
        desk.join(two, P0, "b")
    with refused(ErrorCode.OVERLOADED, "2 transactions are open"):
        desk.begin(task=1)
    desk.join(one, P1, "a")
    desk.end(one, name="a")
    desk.join(two, P0, "b")


def test_so_many_bytes_of_state_and_no_more_but_decisions_always() -> None:
    desk = Desk(TransactionConfig(state_bytes_max=600))
    who = desk.init()
    desk.join(who)
    while desk.machine._book.state_bytes < 600:
        desk.init(f"filler {desk.machine._book.state_bytes}")
    for call in (
        lambda: desk.init("another"),
        lambda: desk.init(instance="b"),
        lambda: desk.join(who, P1),
        desk.begin,
    ):
        with refused(ErrorCode.OVERLOADED, "the limit is 600"):
            call()
    desk.init()
    desk.join(who)
    desk.end(who)
    desk.pass_time(1_000)


def test_the_state_is_counted_in_bytes_of_its_records() -> None:
    desk = Desk(RARELY)
    who = desk.init()
    desk.join(who)
    desk.begin()
    desk.init(instance="b")
    desk.finished(P0, who=who)
    desk.pass_time(1_000)
    live = dict(desk.log)
    size = sum(len(key) + len(value) for key, value in live.items() if value is not None)
    assert desk.machine._book.state_bytes == size
    sizes = {name: holder.branch_bytes for name, holder in desk.machine.holders.items()}
    desk.restart()
    assert desk.machine._book.state_bytes == size
    assert {name: h.branch_bytes for name, h in desk.machine.holders.items()} == sizes
    desk.pass_time(100 * DAY_MS)
    assert desk.machine._book.state_bytes == 0


def test_so_many_participants_and_no_more() -> None:
    desk = Desk(TransactionConfig(participants_max=2))
    who = desk.init()
    desk.join(who, P0)
    desk.end(who)
    following = (who[0], 1)
    desk.join(following, GROUP)
    desk.join_later(following, P0)
    with refused(ErrorCode.TRANSACTION_TOO_LARGE, "2 partitions and groups"):
        desk.join(following, P1)
    desk.join(following, GROUP)


# ---------------------------------------------------------------- what expires


def test_an_id_that_is_not_used_for_7_days_is_forgotten() -> None:
    desk = Desk(RARELY)
    who = desk.init("plain")
    desk.join(who, P0, "plain")
    desk.pass_time(5_000)
    desk.abort("plain")
    desk.finished(P0, who=who)
    desk.pass_time(6 * DAY_MS)
    assert "plain" in desk.machine.holders
    desk.pass_time(2 * DAY_MS)
    assert "plain" not in desk.machine.holders
    assert (encode_key(IdKey("plain")), None) in desk.log
    assert (encode_key(BranchKey("plain", 0)), None) in desk.log
    with refused(ErrorCode.UNKNOWN_TRANSACTIONAL_ID, "unused for 7 days"):
        desk.join((who[0], 1), P0, "plain")
    assert desk.init("plain")[0] != who[0]


def test_an_id_is_kept_while_someone_has_yet_to_hear() -> None:
    desk = Desk(TransactionConfig(id_expiration_ms=1_000, sweep_interval_ms=500))
    who = desk.init()
    desk.join(who)
    desk.end(who)
    desk.pass_time(8_000)
    assert "tx" in desk.machine.holders
    desk.finished(P0, who=who)
    desk.pass_time(2_000)
    assert "tx" not in desk.machine.holders


def test_an_id_that_is_forgotten_before_it_was_written_who_heard_stays_forgotten() -> None:
    desk = Desk(TransactionConfig(id_expiration_ms=10, sweep_interval_ms=200))
    who = desk.init()
    desk.join(who)
    desk.end(who)
    desk.pass_time(150)
    desk.finished(P0, who=who)
    desk.pass_time(5_000)
    assert not desk.machine.holders
    desk.restart()
    assert not desk.machine.holders


def test_a_ledger_outlives_its_branches_and_goes_after_90_days() -> None:
    desk = Desk(RARELY)
    begun = desk.begin()
    desk.commit_batch(begun)
    desk.pass_time(80 * DAY_MS)
    assert "app" not in desk.machine.holders
    desk.restart()
    assert desk.begin(run="r2").already_committed
    desk.pass_time(11 * DAY_MS)
    assert "app" not in desk.machine.ledgers
    assert (encode_key(LedgerKey("app")), None) in desk.log
    again = desk.begin(run="r3")
    assert not again.already_committed, "whoever comes after that writes the batch again"


def test_ids_and_ledgers_follow_a_clock_that_is_set_and_stay_while_it_is_in_doubt() -> None:
    desk = Desk(RARELY)
    desk.commit_batch(desk.begin())
    desk.restart(TIME_MS + 200 * DAY_MS)
    for is_trusted, ahead_days in ((False, 200), (True, 0)):
        desk.machine.set_wall(TIME_MS + ahead_days * DAY_MS, is_trusted=is_trusted)
        desk.pass_time(DAY_MS)
        assert "app" in desk.machine.holders
        assert "app" in desk.machine.ledgers
    desk.machine.set_wall(TIME_MS + 200 * DAY_MS, is_trusted=True)
    desk.pass_time(DAY_MS)
    assert not desk.machine.holders
    assert not desk.machine.ledgers


def test_a_sweep_looks_at_some_ids_at_a_time(desk: Desk) -> None:
    for number in range(450):
        desk.init(f"id {number}")
    desk.now_ms = 8 * DAY_MS
    desk.feed(c.Tick())
    assert len(desk.machine.holders) == 250
    desk.pass_time(200)
    assert not desk.machine.holders


# ---------------------------------------------------------------- what is told


def listed(desk: Desk, **fields: object) -> list[tuple[str, int]]:
    answer = desk.ask(ListRequested, **fields)
    return [(one.transactional_id, one.branch) for one in answer.transactions]


def test_transactions_are_listed_by_state_age_and_producer(desk: Desk) -> None:
    idle = desk.init("idle", client_id="me", client_host="h")
    done = desk.init("done")
    desk.join(done, P0, "done")
    desk.end(done, name="done")
    desk.pass_time(500)
    desk.begin()
    desk.pass_time(100)
    assert listed(desk) == [("app", 1), ("done", 0), ("idle", 0)]
    assert listed(desk, states=frozenset({TransactionState.OPEN})) == [("app", 1)]
    assert listed(desk, producer_id=idle[0]) == [("idle", 0)]
    assert listed(desk, older_than_ms=100) == [("app", 1), ("done", 0)]
    assert listed(desk, older_than_ms=101) == [("done", 0)]
    with refused(ErrorCode.INVALID_REQUEST):
        listed(desk, older_than_ms=-1)
    app, finishing, first = desk.ask(ListRequested).transactions
    assert (app.open_ms, app.finishing, app.finishing_ms) == (100, 0, 0)
    desk.end(idle, name="idle")  # empty: nobody has to hear
    assert desk.ask(ListRequested, producer_id=idle[0]).transactions[0].finishing_ms == 0
    assert (finishing.open_ms, finishing.finishing, finishing.finishing_ms) == (0, 1, 600)
    assert (first.client_id, first.client_host, first.state) == (
        "me",
        "h",
        TransactionState.IDLE,
    )


def test_an_id_is_described_as_recorded(desk: Desk) -> None:
    who = desk.init()
    desk.now_ms = 70
    desk.join(who, GROUP)
    described = desk.ask(DescribeRequested, transactional_id="tx")
    assert described.branches == {0: desk.record()}
    assert described.record.instance_id == "a"
    assert described.used_ms == 1_700_000_000_070
    with refused(ErrorCode.UNKNOWN_TRANSACTIONAL_ID):
        desk.ask(DescribeRequested, transactional_id="nobody")


def test_ledgers_are_listed(desk: Desk) -> None:
    for name in "ba":
        desk.commit_batch(desk.begin(name=name), name=name)
    assert list(desk.ask(LedgersRequested).ledgers) == ["a", "b"]


def test_the_census_counts_what_metrics_show(desk: Desk) -> None:
    who = desk.init()
    desk.join(who, P0)
    desk.join(who, U0)
    desk.end(who)
    desk.pass_time(300)
    desk.begin()
    desk.pass_time(50)
    desk.feed(c.Tick())
    census = desk.machine.census
    assert (census.ids, census.ledgers) == (2, 1)
    assert (census.open, census.oldest_open_ms) == (1, 50)
    assert (census.finishing, census.oldest_finishing_ms) == (2, 350)
    assert Desk().machine.census.oldest_open_ms == 0


# ---------------------------------------------------------------- the machine


def test_events_that_change_nothing_give_nothing(desk: Desk) -> None:
    assert desk.feed(c.FinishedHeard(P0, ProducerId(1), 0)) is c.NOTHING
    assert desk.feed(c.ImageChanged(frozenset())) is c.NOTHING
    assert desk.feed(c.TopicsGone(frozenset({TopicId("t")}))) is c.NOTHING
    assert desk.feed(c.Tick()) is c.NOTHING


def test_many_timeouts_at_once_are_one_tick() -> None:
    desk = Desk()
    for number in range(50):
        who = desk.init(f"id {number}")
        desk.join(who, PartitionParticipant(TopicId("t"), number), f"id {number}")
    desk.now_ms = 60_000
    ready = desk.feed(c.Tick())
    (sent,) = ready.outputs
    assert isinstance(sent, c.SendEnds)
    assert len(sent.entries) == len(ready.records) == len(ready.ended) == 50


def test_an_id_belongs_to_one_partition_for_ever() -> None:
    assert [coordinator_partition(name, 16) for name in ("billing-0", "ü")] == [
        coordinator_partition(name, 16) for name in ("billing-0", "ü")
    ]
    assert {coordinator_partition(f"id {n}", 16) for n in range(300)} == set(range(16))


def test_a_coordinator_that_has_nothing_waits_for_its_sweep() -> None:
    machine = TransactionCoordinator(TransactionConfig(), 0)
    assert machine.start(5) is c.NOTHING
    assert machine.next_wake_ms == 60_005

"""Transactions on three real brokers, by the plain protocol: decided, told, and never half.

What a partition holds is asked of its leader: its open transactions, its last stable offset.
"""

import urllib.request
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import grpc
import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.cluster import PATIENT, Cluster
from support.group_wire import Groups
from support.internal_topic import check_internal
from support.transaction_wire import (
    TransactionalProducer,
    Transactions,
    again,
    partition_transactions,
    transactional_batch,
)
from support.waiting import wait_until
from support.wire import Wire, make_batch

from penstock.core.transactions.config import TRANSACTIONS_PARTITIONS, TRANSACTIONS_TOPIC
from penstock.core.types import TRANSACTIONAL_PRODUCER_BIT
from penstock.errors import ErrorCode, PenstockError
from penstock.proto.v1 import broker_pb2
from penstock.proto.v1 import transaction_pb2 as pb
from penstock.proto.v1.group_pb2 import FetchOffsetsRequest
from penstock.rpc.batches import batch_to_wire
from penstock.rpc.errors import error_from_rpc, error_from_wire


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    path = tmp_path_factory.mktemp("transactions")
    with Cluster(path, brokers=3, controller_config=PATIENT) as running:
        running.create_topic("t", partitions=6)
        yield running


def new_id() -> str:
    return f"app-{uuid.uuid4()}"


def values(cluster: Cluster, topic: str, number: int) -> list[bytes]:
    """What a reader sees who asks for nothing else than what is committed."""
    with Wire(cluster.brokers[cluster.leader(topic, number)].address) as wire:
        return wire.read_all(topic, partition=number)


def is_open(cluster: Cluster, producer: TransactionalProducer, number: int = 0) -> bool:
    found = partition_transactions(cluster, "t", number)
    return any(each.producer_id == producer.producer_id for each in found.open)


def refusal(act: Callable[[], object]) -> PenstockError:
    with pytest.raises(PenstockError) as caught:
        act()
    return caught.value


# ---------------------------------------------------------------- a producer's transactions


@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_over_partitions_ends_on_all_of_them(
    cluster: Cluster, *, commit: bool
) -> None:
    topic = f"all-{commit}"
    cluster.create_topic(topic, partitions=3)
    producer = TransactionalProducer(cluster, new_id()).init()
    assert producer.producer_id & TRANSACTIONAL_PRODUCER_BIT
    for number in range(3):
        producer.send(topic, b"a", b"b", partition=number)
        producer.send(topic, b"c", partition=number)
    for number in range(3):
        found = partition_transactions(cluster, topic, number)
        assert (found.last_stable_offset, found.high_watermark) == (0, 3)
        assert values(cluster, topic, number) == [], "not before it is decided"
        (one,) = found.open
        assert (one.producer_id, one.producer_epoch, one.first_offset) == (
            producer.producer_id,
            0,
            0,
        )
    answer = producer.end(commit=commit)
    assert (answer.next_producer_epoch, answer.visible) == (1, True)
    for number in range(3):
        found = partition_transactions(cluster, topic, number)
        assert (found.last_stable_offset, found.high_watermark) == (4, 4), "and a marker"
        assert not found.open
        assert values(cluster, topic, number) == ([b"a", b"b", b"c"] if commit else [])
    (branch,) = producer.description().branches
    assert (branch.state, branch.last_epoch) == (pb.TRANSACTION_STATE_IDLE, 0)
    outcome = pb.TRANSACTION_OUTCOME_COMMITTED if commit else pb.TRANSACTION_OUTCOME_ABORTED
    assert (branch.last_outcome, branch.last_reason) == (
        outcome,
        pb.TRANSACTION_END_REASON_PRODUCER,
    )


def test_one_transaction_after_the_other_takes_an_epoch_each(cluster: Cluster) -> None:
    producer = TransactionalProducer(cluster, new_id()).init()
    for epoch in range(5):
        assert producer.epoch == epoch
        producer.send("t", b"x", partition=epoch % 2)
        producer.end(commit=epoch % 2 == 0, wait_visible_ms=0)
    wait_until(lambda: not is_open(cluster, producer, 0), what="all have ended")


def test_an_empty_transaction_may_be_ended_too(cluster: Cluster) -> None:
    producer = TransactionalProducer(cluster, new_id()).init()
    assert producer.end(commit=True).visible
    producer.send("t", b"x")
    assert producer.end(commit=True).visible


def test_an_end_may_be_repeated_but_not_with_the_other_outcome(cluster: Cluster) -> None:
    producer = TransactionalProducer(cluster, new_id()).init()
    producer.send("t", b"x")
    assert producer.end(commit=True).next_producer_epoch == 1
    producer.epoch = 0
    assert producer.end(commit=True).next_producer_epoch == 1
    producer.epoch = 0
    assert refusal(lambda: producer.end(commit=False)).code is ErrorCode.INVALID_TRANSACTION_STATE


def test_whoever_takes_an_id_fences_the_one_that_had_it(cluster: Cluster) -> None:
    name = new_id()
    former = TransactionalProducer(cluster, name, client_id="first").init()
    former.send("t", b"x")
    later = TransactionalProducer(cluster, name, client_id="second").init()
    assert later.producer_id != former.producer_id, "partitions may know later epochs of that"
    assert later.epoch == former.epoch + 1, "who aborts by id and epoch hits one of them"
    error = refusal(lambda: former.end(commit=True))
    assert error.code is ErrorCode.PRODUCER_FENCED
    assert "second" in error.message
    wait_until(lambda: not is_open(cluster, former), what="the former's is aborted")
    assert refusal(lambda: former.send("t", b"y")).code is ErrorCode.PRODUCER_FENCED
    assert refusal(lambda: former.send("t", b"y", partition=1)).code is ErrorCode.PRODUCER_FENCED
    later.send("t", b"z")
    assert later.end(commit=True).visible
    description = later.description()
    assert description.client_id == "second"
    assert description.client_host == "127.0.0.1"
    with pytest.raises(PenstockError) as caught:
        former.init()
    assert caught.value.code is ErrorCode.PRODUCER_FENCED


def test_the_same_producer_may_init_twice(cluster: Cluster) -> None:
    producer = TransactionalProducer(cluster, new_id()).init()
    producer.send("t", b"x")
    known = (producer.producer_id, producer.epoch)
    producer.init()
    assert (producer.producer_id, producer.epoch) == known
    assert is_open(cluster, producer), "a lost answer aborts nothing"
    producer.end(commit=False)


def test_a_producer_that_is_too_slow_hears_it_and_goes_on(cluster: Cluster) -> None:
    producer = TransactionalProducer(cluster, new_id(), transaction_timeout_ms=2_000).init()
    producer.send("t", b"x", partition=2)
    wait_until(lambda: not is_open(cluster, producer, 2), what="its time is up")
    answer = producer.end(commit=True)
    assert error_from_wire(answer.error).code is ErrorCode.TRANSACTION_ABORTED
    assert producer.epoch == 1
    epochs = [1]

    def commits() -> bool:
        """A machine that stands still for as long makes it too slow again."""
        with suppress(PenstockError):
            producer.send("t", b"y", partition=2)
        answer = producer.end(commit=True)
        epochs.append(producer.epoch)
        return not answer.HasField("error")

    wait_until(commits, what="it goes on")
    assert epochs == list(range(1, len(epochs) + 1)), "each one takes an epoch"


def test_an_operator_sees_what_is_open_and_can_abort_it(cluster: Cluster) -> None:
    producer = TransactionalProducer(cluster, new_id(), client_id="slow").init()
    producer.send("t", b"x", partition=3)
    listed: list[Any] = []
    for broker in cluster.brokers.values():
        with Transactions(broker.address) as there:
            request = pb.ListTransactionsRequest(states=[pb.TRANSACTION_STATE_OPEN])
            listed += there.call("ListTransactions", request).transactions
    (line,) = [each for each in listed if each.transactional_id == producer.transactional_id]
    assert (line.state, line.producer_id) == (pb.TRANSACTION_STATE_OPEN, producer.producer_id)
    assert (line.client_id, line.client_host) == ("slow", "127.0.0.1")
    abort = pb.AbortTransactionRequest(
        transactional_id=producer.transactional_id, producer_epoch=-1, reason="it is stuck"
    )
    assert producer.ask("AbortTransaction", abort).aborted == 1
    assert producer.ask("AbortTransaction", abort).aborted == 0
    wait_until(lambda: not is_open(cluster, producer, 3), what="the partition has heard")
    answer = producer.end(commit=True)
    assert error_from_wire(answer.error).code is ErrorCode.TRANSACTION_ABORTED


# ---------------------------------------------------------------- with consumer groups


@pytest.mark.parametrize("commit", [True, False])
def test_offsets_count_with_the_transaction_that_they_are_part_of(
    cluster: Cluster, *, commit: bool
) -> None:
    producer = TransactionalProducer(cluster, new_id()).init()
    group = new_id()
    with Groups(cluster) as groups:
        producer.send("t", b"x")
        part_of = producer.part_of()
        assert groups.commit(group, {("t", 1): 7}, **part_of) == [ErrorCode.UNSPECIFIED]
        request = FetchOffsetsRequest(group_id=group)
        (found,) = groups.call("FetchOffsets", request).offsets
        assert ErrorCode(found.error.code) is ErrorCode.UNSTABLE_OFFSETS
        assert producer.end(commit=commit).visible
        (found,) = groups.call("FetchOffsets", request).offsets or [None]
        assert (None if found is None else found.offset) == (7 if commit else None)
        late = refusal(lambda: groups.commit(group, {("t", 1): 9}, **part_of))
        assert late.code is ErrorCode.PRODUCER_FENCED, "it is over"


@pytest.mark.parametrize("same_broker", [True, False])
def test_a_member_that_is_put_out_takes_its_transaction_along(
    cluster: Cluster, *, same_broker: bool
) -> None:
    with Groups(cluster) as groups:
        group = new_id()
        there = groups.find(group).broker_id
        ids = (TransactionalProducer(cluster, new_id()) for _ in range(1_000))
        producer = next(one for one in ids if (one.coordinator() == there) is same_broker).init()
        member = groups.join(
            group,
            "t",
            transactional_id=producer.transactional_id,
        )
        producer.send("t", b"x", partition=4)
        assert is_open(cluster, producer, 4)
        member.cut()
        wait_until(lambda: not is_open(cluster, producer, 4), what="its transaction is aborted")
    (branch,) = producer.description().branches
    assert branch.last_reason == pb.TRANSACTION_END_REASON_MEMBER_GONE
    told = error_from_wire(producer.end(commit=True).error)
    assert told.code is ErrorCode.TRANSACTION_ABORTED
    assert "by its group, which removed the member" in told.message


@pytest.mark.parametrize(
    "ended_by", [pb.TRANSACTION_END_REASON_PRODUCER, pb.TRANSACTION_END_REASON_TIMEOUT, 99]
)
def test_nobody_aborts_in_the_name_of_another(cluster: Cluster, ended_by: Any) -> None:
    producer = TransactionalProducer(cluster, new_id()).init()
    request = pb.AbortTransactionRequest(
        transactional_id=producer.transactional_id, producer_epoch=-1, ended_by=ended_by
    )
    error = refusal(lambda: producer.ask("AbortTransaction", request))
    assert error.code is ErrorCode.INVALID_REQUEST
    assert "an operator, or a group whose member is gone" in error.message


def metric(cluster: Cluster, name: str, **labels: str) -> float:
    """Summed over the brokers."""
    total = 0.0
    for port in cluster.metrics_ports.values():
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=120) as page:
            for family in text_string_to_metric_families(page.read().decode()):
                for sample in family.samples:
                    if sample.name == name and labels.items() <= sample.labels.items():
                        total += sample.value
    return total


def test_metrics_tell_what_is_open_and_how_transactions_ended(cluster: Cluster) -> None:
    ended = "penstock_transactions_ended_total"
    aborted_before = metric(cluster, ended, outcome="abort", reason="producer")
    visible_before = metric(cluster, "penstock_transaction_visible_seconds_count")
    producer = TransactionalProducer(cluster, new_id()).init()
    producer.send("t", b"x", partition=5)
    wait_until(lambda: metric(cluster, "penstock_transactions_open") >= 1, what="one is open")
    oldest = "penstock_transactions_oldest_open_seconds"
    wait_until(lambda: metric(cluster, oldest) > 0, what="it grows older")
    assert metric(cluster, "penstock_transactional_ids") >= 1
    producer.end(commit=False)
    assert metric(cluster, ended, outcome="abort", reason="producer") == aborted_before + 1
    assert metric(cluster, "penstock_transaction_visible_seconds_count") > visible_before
    wait_until(lambda: metric(cluster, "penstock_transactions_open") == 0, what="none is open")


# ---------------------------------------------------------------- batches of many tasks


def test_a_batch_of_branches_is_decided_at_once_and_remembered(cluster: Cluster) -> None:
    application = TransactionalProducer(cluster, new_id())
    name = application.transactional_id

    def begin(task: int, attempt: int = 0, run: str = "r1") -> pb.BeginBranchResponse:
        request = pb.BeginBranchRequest(
            application_id=name, checkpoint="q", run=run, batch=0, task=task, attempt=attempt
        )
        answer: pb.BeginBranchResponse = application.ask("BeginBranch", request)
        return answer

    branches = [begin(0), begin(1), begin(1, attempt=1)]
    assert begin(0).branch == branches[0].branch, "asked again, the same"
    for number, branch in enumerate(branches):
        application.producer_id, application.epoch = branch.producer_id, branch.producer_epoch
        application._sequences.clear()
        application.send("t", b"row", partition=3 + number)
    request = pb.CommitBatchRequest(
        application_id=name,
        checkpoint="q",
        run="r1",
        batch=0,
        rows=2,
        branches=[
            pb.BranchEpoch(branch=one.branch, producer_epoch=one.producer_epoch)
            for one in branches[:2]
        ],
        wait_visible_ms=60_000,
    )
    answer = application.ask("CommitBatch", request)
    assert (answer.already_committed, answer.visible) == (False, True)
    again_ = application.ask("CommitBatch", request)
    assert (again_.already_committed, again_.rows_then) == (True, 2)
    for number in range(3, 6):
        assert not [
            one
            for one in partition_transactions(cluster, "t", number).open
            if one.producer_id in {branch.producer_id for branch in branches}
        ], "the losing twin ends with the others"
    late = pb.AbortBatchRequest(application_id=name, checkpoint="q", run="r1", batch=0)
    assert application.ask("AbortBatch", late).already_committed
    assert begin(0, attempt=9, run="r2").already_committed
    ledgers = application.ask("ListLedgers", pb.ListLedgersRequest()).ledgers
    (mine,) = [each for each in ledgers if each.application_id == name]
    assert (mine.checkpoint, mine.batch, mine.rows, mine.run) == ("q", 0, 2, "r1")
    forget = pb.ForgetLedgerRequest(application_id=name)
    assert application.ask("ForgetLedger", forget).forgotten
    assert not application.ask("ForgetLedger", forget).forgotten


# ---------------------------------------------------------------- what is refused

BAD_IDS = ["", "x" * 250, "line\nbreak"]
BAD_NAMES: list[tuple[str, Callable[[str], Any]]] = [
    (
        "FindTransactionCoordinator",
        lambda bad: pb.FindTransactionCoordinatorRequest(transactional_id=bad),
    ),
    ("EndTransaction", lambda bad: pb.EndTransactionRequest(transactional_id=bad)),
    ("AbortTransaction", lambda bad: pb.AbortTransactionRequest(transactional_id=bad)),
    ("BeginBranch", lambda bad: pb.BeginBranchRequest(application_id=bad)),
    ("CommitBatch", lambda bad: pb.CommitBatchRequest(application_id=bad)),
    ("AbortBatch", lambda bad: pb.AbortBatchRequest(application_id=bad)),
    ("ForgetLedger", lambda bad: pb.ForgetLedgerRequest(application_id=bad)),
]
BAD: list[tuple[str, Any]] = [
    *((name, request(bad)) for bad in BAD_IDS for name, request in BAD_NAMES),
    ("EndTransaction", pb.EndTransactionRequest(transactional_id="a", wait_visible_ms=60_001)),
    ("AbortTransaction", pb.AbortTransactionRequest(transactional_id="a", producer_epoch=-2)),
    ("AbortTransaction", pb.AbortTransactionRequest(transactional_id="a", reason="r" * 250)),
    ("CommitBatch", pb.CommitBatchRequest(application_id="a", wait_visible_ms=60_001)),
    ("CommitBatch", pb.CommitBatchRequest(application_id="a", run="", batch=1)),
    ("CommitBatch", pb.CommitBatchRequest(application_id="a", run="r", batch=-1)),
    ("BeginBranch", pb.BeginBranchRequest(application_id="a", run="", batch=1)),
    ("BeginBranch", pb.BeginBranchRequest(application_id="a", run="r", checkpoint="c" * 250)),
    (
        "BeginBranch",
        pb.BeginBranchRequest(application_id="a", run="r", transaction_timeout_ms=10**9),
    ),
    ("AbortBatch", pb.AbortBatchRequest(application_id="a", run="", batch=1)),
    ("ListTransactions", pb.ListTransactionsRequest(states=[99])),  # type: ignore[list-item]
]


@pytest.mark.parametrize(("name", "request_"), BAD)
def test_bad_input_is_refused_and_said_to_be_so(cluster: Cluster, name: str, request_: Any) -> None:
    producer = TransactionalProducer(cluster, "a")
    assert refusal(lambda: producer.ask(name, request_)).code is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    "fields",
    [
        {"transactional_id": "x" * 250},
        {"transactional_id": "a", "instance_id": "i" * 250},
        {"transactional_id": "a", "client_id": "c" * 250},
        {"transactional_id": "a", "transaction_timeout_ms": 900_001},
        {"transactional_id": "a", "transaction_timeout_ms": 2**32 - 1},
        {"transactional_id": "a", "producer_id": 5},
        {"producer_id": TRANSACTIONAL_PRODUCER_BIT, "producer_epoch": 0},
        {"producer_id": 2**63 - 1, "producer_epoch": 0},
    ],
)
def test_producers_that_cannot_be_are_refused(cluster: Cluster, fields: dict[str, Any]) -> None:
    where = TransactionalProducer(cluster, "a").coordinator()

    def init() -> None:
        with Transactions(cluster.brokers[where].address) as there:
            there.init(**fields)

    assert refusal(lambda: again(init, what="an answer")).code is ErrorCode.INVALID_REQUEST


def test_the_longest_timeout_is_a_setting_and_the_default_obeys_it(tmp_path: Path) -> None:
    settings = {"transaction.max.timeout.ms": "1000"}
    with Cluster(tmp_path, broker_config=settings) as small:
        too_long = TransactionalProducer(small, "a", transaction_timeout_ms=1_001)
        assert refusal(too_long.init).code is ErrorCode.INVALID_REQUEST
        by_default = TransactionalProducer(small, "a").init()
        assert by_default.description().transaction_timeout_ms == 1_000


def test_the_number_of_coordinators_is_a_setting_that_counts_when_the_first_id_comes(
    tmp_path: Path,
) -> None:
    with Cluster(tmp_path, broker_config={"transactions.topic.partitions": "3"}) as small:
        assert TransactionalProducer(small, "a").init().description().partition < 3
        topic = small.topic("__transactions")
        assert topic is not None
        assert len(topic.partitions) == 3
        broker = small.brokers[0]
        broker.kill()
        at = broker.arguments.index("transactions.topic.partitions=3")
        broker.arguments[at] = "transactions.topic.partitions=7"
        broker.start()
        small.wait_alive({0})
        again(lambda: TransactionalProducer(small, "b").init(), what="the broker is back")
        topic = small.topic("__transactions")
        assert topic is not None
        assert len(topic.partitions) == 3


def test_users_cannot_write_or_change_the_internal_topic(cluster: Cluster) -> None:
    producer = TransactionalProducer(cluster, new_id()).init()
    check_internal(cluster, TRANSACTIONS_TOPIC, TRANSACTIONS_PARTITIONS)
    producer.send("t", b"x")
    assert producer.end(commit=True).visible, "nothing has happened to it"


def test_ids_that_nobody_has_are_unknown(cluster: Cluster) -> None:
    producer = TransactionalProducer(cluster, new_id())
    (found,) = producer.ask(
        "DescribeTransactions",
        pb.DescribeTransactionsRequest(transactional_ids=[producer.transactional_id]),
    ).transactions
    assert error_from_wire(found.error).code is ErrorCode.UNKNOWN_TRANSACTIONAL_ID
    producer.producer_id = TRANSACTIONAL_PRODUCER_BIT + 5
    producer.epoch = 0
    error = refusal(lambda: producer.end(commit=True))
    assert error.code in {ErrorCode.UNKNOWN_TRANSACTIONAL_ID, ErrorCode.PRODUCER_FENCED}
    error = refusal(lambda: producer.send("t", b"x"))
    assert error.code in {ErrorCode.UNKNOWN_TRANSACTIONAL_ID, ErrorCode.PRODUCER_FENCED}


def test_partitions_that_are_elsewhere_or_nowhere_are_said_to_be(cluster: Cluster) -> None:
    leader = cluster.leader("t", 0)
    names = [("t", 0), ("t", 99), ("nowhere", 0)]
    request = pb.DescribePartitionTransactionsRequest(
        partitions=[pb.TopicPartitionName(topic=name, partition=part) for name, part in names]
    )
    with Transactions(cluster.brokers[leader].address) as there:
        found = there.call("DescribePartitionTransactions", request).partitions
    assert not found[0].HasField("error")
    assert [error_from_wire(one.error).code for one in found[1:]] == [
        ErrorCode.UNKNOWN_PARTITION,
        ErrorCode.UNKNOWN_TOPIC,
    ]
    with Transactions(cluster.brokers[(leader + 1) % 3].address) as there:
        found = there.call("DescribePartitionTransactions", request).partitions
    assert error_from_wire(found[0].error).code is ErrorCode.NOT_LEADER


def test_calls_for_an_id_that_is_coordinated_elsewhere_say_so(cluster: Cluster) -> None:
    producer = TransactionalProducer(cluster, new_id()).init()
    elsewhere = (producer.coordinator() + 1) % 3
    with Transactions(cluster.brokers[elsewhere].address) as there:
        request = pb.EndTransactionRequest(transactional_id=producer.transactional_id)
        error = refusal(lambda: there.call("EndTransaction", request))
        assert (error.code, error.retriable) == (ErrorCode.NOT_COORDINATOR, True)
        error = refusal(lambda: there.init(transactional_id=producer.transactional_id))
        assert error.code is ErrorCode.NOT_COORDINATOR


def test_ends_on_a_stream_are_answered_in_order_until_one_is_refused(cluster: Cluster) -> None:
    counted = partial(metric, cluster, "penstock_request_seconds_count", method="EndTransaction")
    before = counted()
    producer = TransactionalProducer(cluster, new_id()).init()
    ends: SimpleQueue[pb.EndTransactionRequest | None] = SimpleQueue()
    with Transactions(cluster.brokers[producer.coordinator()].address) as there:
        answers = there.calls.EndTransactionStream(iter(ends.get, None), timeout=120)
        for value in (b"first", b"second"):
            producer.send("t", value)
            ends.put(producer.end_request(commit=True))
            answer = next(answers)
            assert answer.visible
            producer.ended(answer)
        ends.put(producer.end_request(commit=True, wait_visible_ms=60_001))
        with pytest.raises(grpc.RpcError) as caught:
            next(answers)
        ends.put(None)
    assert error_from_rpc(caught.value).code is ErrorCode.INVALID_REQUEST
    assert counted() == before + 3
    assert not is_open(cluster, producer)


def test_transactional_batches_and_ids_go_together(cluster: Cluster) -> None:
    producer = TransactionalProducer(cluster, new_id()).init()

    def produce(
        batch: Any, transactional_id: str, acks: broker_pb2.Acks.ValueType = broker_pb2.ACKS_ALL
    ) -> None:
        part = broker_pb2.ProducePartition(topic="t", batch=batch_to_wire(batch))
        request = broker_pb2.ProduceRequest(
            acks=acks, partitions=[part], transactional_id=transactional_id
        )
        with Wire(cluster.brokers[cluster.leader("t", 0)].address) as wire:
            (result,) = wire.call(wire.data.Produce, request).results
        if result.HasField("error"):
            raise error_from_wire(result.error)

    sealed = transactional_batch([b"x"], producer.producer_id, 0, 0)
    plain = make_batch([b"x"])
    name = producer.transactional_id
    for batch, transactional_id, acks in (
        (sealed, "", broker_pb2.ACKS_ALL),
        (plain, name, broker_pb2.ACKS_ALL),
        (sealed, name, broker_pb2.ACKS_LEADER),
        (sealed, "x" * 250, broker_pb2.ACKS_ALL),
        (transactional_batch([b"x"], 5, 0, 0), name, broker_pb2.ACKS_ALL),
    ):
        error = refusal(partial(produce, batch, transactional_id, acks))
        assert error.code is ErrorCode.INVALID_REQUEST
    assert not is_open(cluster, producer)

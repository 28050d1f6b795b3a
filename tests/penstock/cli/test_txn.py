"""`penstock txn …` against two scripted brokers: what is asked of whom, and what is printed.

The doubles are real gRPC servers on loopback. They coordinate one transactional id and one
application id, on broker 1, so that whoever asks broker 0 is sent on.
"""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import grpc
import pytest
from support.terminals import person_there
from typer.testing import CliRunner

from penstock.cli.main import app
from penstock.errors import ClusterError, ErrorCode
from penstock.proto.v1 import broker_pb2
from penstock.proto.v1 import transaction_pb2 as pb
from penstock.proto.v1.broker_pb2_grpc import (
    BrokerServiceServicer,
    add_BrokerServiceServicer_to_server,
)
from penstock.proto.v1.transaction_pb2_grpc import (
    TransactionServiceServicer,
    add_TransactionServiceServicer_to_server,
)
from penstock.rpc.errors import error_to_wire

COORDINATOR = 1
PAYMENTS = pb.TransactionListing(
    transactional_id="payments-0",
    state=pb.TRANSACTION_STATE_OPEN,
    producer_id=4711,
    producer_epoch=7,
    open_ms=61_500,
    finishing=1,
    oldest_finishing_ms=2_000,
    client_id="billing",
    client_host="10.0.0.7",
)
FLIGHTS = pb.TransactionParticipant(
    partition=pb.ParticipantPartition(topic_id="id-of-flights", partition=0)
)
GONE = pb.TransactionParticipant(
    partition=pb.ParticipantPartition(topic_id="id-of-gone", partition=2)
)


class Broker(BrokerServiceServicer, TransactionServiceServicer):
    """One of two. `requests` are all that it was asked about transactions."""

    def __init__(self, broker_id: int) -> None:
        self.broker_id = broker_id
        self.brokers: list[Broker] = []
        self.port = 0
        self.requests: list[Any] = []
        self.loading = 0
        """How many lists still lack partitions."""

    # gRPC's names
    # ruff: noqa: N802
    def Metadata(self, request: Any, context: Any) -> broker_pb2.MetadataResponse:
        return broker_pb2.MetadataResponse(
            cluster_id="cluster",
            metadata_version=1,
            brokers=[
                broker_pb2.BrokerInfo(
                    broker_id=one.broker_id, host="127.0.0.1", port=one.port, alive=True
                )
                for one in self.brokers
            ],
            topics=[
                broker_pb2.TopicInfo(
                    topic="flights",
                    topic_id="id-of-flights",
                    partitions=[
                        broker_pb2.PartitionInfo(
                            leader=0, leader_epoch=1, replicas=[0], isr=[0], version=1
                        )
                    ],
                )
            ],
        )

    def FindTransactionCoordinator(
        self, request: Any, context: Any
    ) -> pb.FindTransactionCoordinatorResponse:
        return pb.FindTransactionCoordinatorResponse(
            broker_id=COORDINATOR, host="127.0.0.1", port=self.brokers[COORDINATOR].port
        )

    def ListTransactions(self, request: Any, context: Any) -> pb.ListTransactionsResponse:
        self.requests.append(request)
        if self.loading:
            self.loading -= 1
            return pb.ListTransactionsResponse(loading_partitions=[3])
        mine = [PAYMENTS] if self.broker_id == COORDINATOR else []
        if request.producer_id not in (0, PAYMENTS.producer_id):
            mine = []
        return pb.ListTransactionsResponse(transactions=mine)

    def DescribeTransactions(self, request: Any, context: Any) -> pb.DescribeTransactionsResponse:
        assert self.broker_id == COORDINATOR
        (name,) = request.transactional_ids
        seen = pb.TransactionDescription(transactional_id=name)
        if name != "payments-0":
            unknown = f"there is no transactional id {name!r}"
            seen.error.CopyFrom(
                error_to_wire(ClusterError(unknown, ErrorCode.UNKNOWN_TRANSACTIONAL_ID))
            )
            return pb.DescribeTransactionsResponse(transactions=[seen])
        seen.client_id, seen.client_host = "billing", "10.0.0.7"
        seen.transaction_timeout_ms, seen.used_time_ms = 60_000, 1_000_000_000_000
        seen.partition, seen.coordinator = 3, COORDINATOR
        seen.branches.append(
            pb.BranchDescription(
                state=pb.TRANSACTION_STATE_OPEN,
                producer_id=4711,
                producer_epoch=7,
                started_time_ms=1_000_000_000_000,
                transaction_timeout_ms=60_000,
                joined=[FLIGHTS, GONE, pb.TransactionParticipant(group_id="g")],
                finishing=[
                    pb.FinishingParticipant(participant=FLIGHTS, producer_epoch=6, commit=True)
                ],
                last_epoch=6,
                last_outcome=pb.TRANSACTION_OUTCOME_COMMITTED,
                last_reason=pb.TRANSACTION_END_REASON_MEMBER_GONE,
            )
        )
        return pb.DescribeTransactionsResponse(transactions=[seen])

    def AbortTransaction(self, request: Any, context: Any) -> pb.AbortTransactionResponse:
        assert self.broker_id == COORDINATOR
        self.requests.append(request)
        return pb.AbortTransactionResponse(aborted=1 if request.producer_epoch in (-1, 7) else 0)

    def ListLedgers(self, request: Any, context: Any) -> pb.ListLedgersResponse:
        ledger = pb.Ledger(
            application_id="spark/flights", checkpoint="c", batch=12, run="r",
            time_ms=1_000_000_000_000, rows=99,
        )  # fmt: skip
        return pb.ListLedgersResponse(ledgers=[ledger] if self.broker_id == COORDINATOR else [])

    def ForgetLedger(self, request: Any, context: Any) -> pb.ForgetLedgerResponse:
        assert self.broker_id == COORDINATOR
        self.requests.append(request)
        return pb.ForgetLedgerResponse(forgotten=request.application_id == "spark/flights")

    def DescribePartitionTransactions(
        self, request: Any, context: Any
    ) -> pb.DescribePartitionTransactionsResponse:
        assert self.broker_id == 0, "the leader's to say"
        (part,) = request.partitions
        return pb.DescribePartitionTransactionsResponse(
            partitions=[
                pb.PartitionTransactions(
                    topic=part.topic,
                    partition=part.partition,
                    last_stable_offset=5,
                    high_watermark=9,
                    open=[
                        pb.OpenTransaction(producer_id=4711, producer_epoch=7, first_offset=5),
                        pb.OpenTransaction(producer_id=1, producer_epoch=0, first_offset=7),
                    ],
                )
            ]
        )


class Program:
    """`penstock` in this process, at the doubles."""

    def __init__(self, brokers: list[Broker]) -> None:
        self.brokers = brokers
        self._bootstrap = f"127.0.0.1:{brokers[0].port}"

    def run(self, *words: object, typed: str = "") -> Any:
        with person_there(bool(typed)):
            done = CliRunner().invoke(
                app,
                ["txn", *map(str, words)],
                input=typed,
                env={"PENSTOCK_BOOTSTRAP": self._bootstrap},
            )
        assert "Traceback" not in done.output, done.output
        return done

    def ok(self, *words: object, typed: str = "") -> str:
        done = self.run(*words, typed=typed)
        assert done.exit_code == 0, done.output
        return str(done.stdout)

    def json(self, *words: object) -> Any:
        return json.loads(self.ok(*words, "-o", "json"))

    def fails(self, *words: object, code: int) -> str:
        done = self.run(*words)
        assert done.exit_code == code, done.output
        assert len(done.stderr.splitlines()) == 1, done.stderr
        return str(done.stderr)


def stop(server: grpc.Server) -> None:
    server.stop(None).wait()


@pytest.fixture
def penstock() -> Iterator[Program]:
    brokers = [Broker(number) for number in (0, 1)]  # type: ignore[abstract]  # other calls are unimplemented
    with ExitStack() as stack:
        for broker in brokers:
            broker.brokers = brokers
            workers = stack.enter_context(ThreadPoolExecutor(4))
            server = grpc.server(workers)
            stack.callback(stop, server)
            add_BrokerServiceServicer_to_server(broker, server)
            add_TransactionServiceServicer_to_server(broker, server)
            broker.port = server.add_insecure_port("127.0.0.1:0")
            server.start()
        yield Program(brokers)


def test_a_list_is_what_all_brokers_coordinate(penstock: Program) -> None:
    (row,) = penstock.json("list", "--older-than", "1m30s", "--state", "open")
    assert row == {
        "id": "payments-0", "branch": 0, "state": "open", "open_s": 61.5, "finishing": 1,
        "finishing_s": 2.0, "producer": 4711, "epoch": 7, "client": "billing", "host": "10.0.0.7",
    }  # fmt: skip
    for broker in penstock.brokers:
        (request,) = broker.requests
        assert request.older_than_ms == 90_000
        assert list(request.states) == [pb.TRANSACTION_STATE_OPEN]
    assert penstock.ok("list").split()[:3] == ["ID", "BRANCH", "STATE"]


def test_a_list_waits_for_those_who_are_loading(penstock: Program) -> None:
    penstock.brokers[1].loading = 2
    assert [row["id"] for row in penstock.json("list")] == ["payments-0"]


def test_a_description_names_owner_participants_and_the_last_end(penstock: Program) -> None:
    seen = penstock.json("describe", "payments-0")
    (branch,) = seen.pop("branches")
    assert seen == {
        "id": "payments-0", "client": "billing", "host": "10.0.0.7", "instance": "",
        "timeout_s": 60.0, "used": "2001-09-09T01:46:40Z", "coordinator": 1,
        "coordinator_partition": 3,
    }  # fmt: skip
    assert branch == {
        "branch": 0, "state": "open", "producer": 4711, "epoch": 7,
        "since": "2001-09-09T01:46:40Z", "timeout_s": 60.0,
        "joined": ["flights/0", "id-of-gone/2", "group g"], "finishing": ["flights/0 commit"],
        "last": "committed", "by": "member gone",
    }  # fmt: skip
    assert "flights/0,id-of-gone/2,group g" in penstock.ok("describe", "payments-0")


def test_an_abort_asks_first_and_tells_what_it_did(penstock: Program) -> None:
    asked = penstock.run("abort", "payments-0", typed="n\n")
    assert asked.exit_code == 1
    assert "Abort 1 open transaction of billing at 10.0.0.7?" in asked.stderr
    assert penstock.brokers[1].requests == []
    out = penstock.ok("abort", "payments-0", "--reason", "its host is gone", typed="y\n")
    assert out.endswith("payments-0: 1 open transaction aborted\n")
    (request,) = penstock.brokers[1].requests
    assert (request.producer_epoch, request.reason) == (7, "its host is gone"), "what was shown"
    penstock.ok("abort", "payments-0", "--yes")
    assert penstock.brokers[1].requests[-1].producer_epoch == -1, "nobody was shown anything"


@pytest.mark.parametrize("how", ["--yes", "--dry-run"])
def test_an_abort_of_another_epoch_names_the_one_that_is_open(penstock: Program, how: str) -> None:
    told = penstock.fails("abort", "payments-0", "--epoch", 6, how, code=1)
    assert "--epoch is 6, and what is open of payments-0 has epoch 7; nothing was aborted" in told
    assert penstock.brokers[1].requests == []


def test_a_partition_shows_what_holds_it_and_whose_it_is(penstock: Program) -> None:
    seen = penstock.json("partition", "flights/0")
    assert (seen["last_stable_offset"], seen["high_watermark"]) == (5, 9)
    assert [(one["first_offset"], one["id"], one["host"]) for one in seen["open"]] == [
        (5, "payments-0", "10.0.0.7"),
        (7, None, None),
    ]


def test_ledgers_are_listed_and_forgotten(penstock: Program) -> None:
    (row,) = penstock.json("ledgers")
    assert (row["application"], row["batch"], row["rows"]) == ("spark/flights", 12, 99)
    assert penstock.run("forget-ledger", "spark/flights", typed="n\n").exit_code == 1
    assert penstock.brokers[1].requests == []
    out = penstock.ok("forget-ledger", "spark/flights", "--yes")
    assert out == "ledger of spark/flights deleted\n"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("describe", "nobody"), 1, "there is no transactional id 'nobody'"),
        (("abort", "nobody", "--yes"), 1, "there is no transactional id 'nobody'"),
        (("forget-ledger", "nobody", "--yes"), 1, "there is no ledger of 'nobody'"),
        (("partition", "flights"), 2, "must be TOPIC/PARTITION"),
        (("partition", "flights/-1"), 2, "must be TOPIC/PARTITION"),
        (("partition", "/1"), 2, "must be TOPIC/PARTITION"),
        (("partition", "flights/7"), 1, "partition"),
        (("partition", "nosuch/0"), 1, "nosuch"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    penstock: Program, words: tuple[str, ...], code: int, said: str
) -> None:
    assert said in penstock.fails(*words, code=code)


def test_an_empty_id_is_wrong_usage(penstock: Program) -> None:
    for command in ("describe", "abort", "forget-ledger"):
        assert penstock.run(command, "").exit_code == 2

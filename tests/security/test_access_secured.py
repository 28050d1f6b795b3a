"""Rules in a cluster of real processes, with TLS and tokens: by the client, as users use it."""

from collections.abc import Iterator
from typing import Any

import pytest
from support.secured import Secured, secured_cluster
from support.waiting import wait_until

from penstock.client import Consumer
from penstock.core.authorization import CLUSTER, Kind, Operation, Prefix, Resource, Rule
from penstock.errors import ErrorCode, PenstockError

T = Resource(Kind.TOPIC, "orders")
G = Resource(Kind.GROUP, "readers")
ADA, BOB = (f"serviceaccount:etl/{name}" for name in ("ada", "bob"))


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with secured_cluster(tmp_path_factory.mktemp("secured")) as made:
        with made.admin() as admin:
            admin.create_topic("orders", partitions=2, replication_factor=2)
        yield made


def code(act: Any) -> ErrorCode:
    try:
        act()
    except PenstockError as error:
        return error.code
    return ErrorCode.UNSPECIFIED


def test_what_a_user_may_do_by_rules_and_only_that(secured: Secured) -> None:
    with secured.admin() as root, secured.admin("ada") as ada:
        assert ada.list_topics() == []
        assert code(lambda: ada.alter_access(T, ())) is ErrorCode.PERMISSION_DENIED
        rule = Rule(principals=(ADA,), operations=(Operation.READ, Operation.WRITE))
        root.alter_access(T, [rule])
        root.alter_access(G, [Rule(principals=(ADA,), operations=(Operation.READ,))])
        wait_until(lambda: ada.list_topics() == ["orders"], what="the rule arrives")
        decision = ada.check_access(Operation.WRITE, T)
        assert (decision.principal, decision.allowed, decision.rule) == (ADA, True, rule)
        assert not ada.check_access(Operation.DELETE, T).allowed
        assert code(lambda: ada.delete_topic("orders")) is ErrorCode.PERMISSION_DENIED
        assert code(ada.describe_access) is ErrorCode.PERMISSION_DENIED
        assert root.describe_access([T]) == {T: (rule,)}
        create = Rule(
            principals=(ADA,), operations=(Operation.CREATE,), prefix=Prefix(Kind.TOPIC, "etl.")
        )
        root.alter_access(CLUSTER, [create])
        wait_until(
            lambda: code(lambda: ada.create_topic("etl.x", 1, 1)) is ErrorCode.UNSPECIFIED,
            what="the prefix counts",
        )
        assert code(lambda: ada.create_topic("other", 1, 1)) is ErrorCode.PERMISSION_DENIED

    with secured.producer("ada") as producer:
        for number in range(20):
            producer.send("orders", key=str(number).encode(), value=b"v")
        producer.flush()
    with Consumer(
        secured.cluster.bootstrap,
        group_id="readers",
        auto_offset_reset="earliest",
        **secured.options("ada"),
    ) as consumer:
        consumer.subscribe(["orders"])
        seen = 0

        def all_seen() -> bool:
            nonlocal seen
            seen += sum(len(batch) for batch in consumer.poll(1.0))
            return seen >= 20

        wait_until(all_seen, what="all records arrive")
        consumer.commit()

    with secured.producer("bob", delivery_timeout_ms=4_000, request_timeout_ms=2_000) as producer:
        refused = code(lambda: producer.send("orders", value=b"no").result())
        assert refused in {ErrorCode.UNKNOWN_TOPIC, ErrorCode.DELIVERY_TIMED_OUT}

    with secured.admin() as root, secured.producer("ada") as producer:
        producer.send("orders", value=b"v").result()
        root.alter_access(T, [Rule(principals=(ADA,), operations=(Operation.READ,))])
        wait_until(
            lambda: (
                code(lambda: producer.send("orders", value=b"no").result())
                is ErrorCode.PERMISSION_DENIED
            ),
            what="the open stream refuses",
        )

    options = {"unknown_topic_timeout_ms": 500, "metadata_max_age_ms": 3_600_000}
    with secured.admin() as root, secured.producer("ada", **options) as producer:
        root.alter_access(T, [rule])
        wait_until(
            lambda: (
                code(lambda: producer.send("orders", value=b"v").result()) is ErrorCode.UNSPECIFIED
            ),
            what="the rule counts again",
        )
        root.alter_access(T, ())
        wait_until(
            lambda: (
                code(lambda: producer.send("orders", value=b"no").result())
                is ErrorCode.UNKNOWN_TOPIC
            ),
            what="the topic is gone for her",
        )

"""A cluster that goes to sleep, as clients see it: no new work, and what has begun can end."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from support.channels import patient_channel
from support.cluster import Cluster
from support.waiting import wait_until
from typer.testing import CliRunner

from penstock.cli.main import app
from penstock.client import Admin, Consumer, Producer
from penstock.client.config import ProducerOptions
from penstock.errors import ErrorCode, PenstockError
from penstock.proto.v1 import broker_pb2, group_pb2
from penstock.proto.v1.broker_pb2_grpc import BrokerServiceStub
from penstock.proto.v1.group_pb2_grpc import GroupServiceStub
from penstock.rpc.errors import error_from_rpc


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path, brokers=1) as cluster:
        yield cluster


def sleep(admin: Admin, *, hibernating: bool = True) -> None:
    admin.alter_cluster(hibernating=hibernating)
    wait_until(
        lambda: admin.describe_cluster().hibernating == hibernating, what="the broker is told"
    )


def code_of(call: Any) -> ErrorCode:
    with pytest.raises(grpc.RpcError) as refused:
        call()
    return error_from_rpc(refused.value).code


def test_new_work_is_refused_and_what_has_begun_ends(cluster: Cluster) -> None:
    with (
        Admin(cluster.bootstrap) as admin,
        Producer(cluster.bootstrap, transactional_id="t-1") as writer,
        Consumer(cluster.bootstrap, group_id="readers", auto_offset_reset="earliest") as reader,
    ):
        admin.create_topic("t", 1, 1)
        with Producer(cluster.bootstrap) as producer:
            producer.send("t", b"before").result()
        reader.subscribe(["t"])
        seen: list[Any] = []

        def read(count: int) -> bool:
            seen.extend(reader.one_by_one(reader.poll(1.0)))
            return len(seen) >= count

        wait_until(lambda: read(1), what="a record")
        begun = writer.transaction()
        begun.begin()
        begun.send("t", b"in a transaction").result()
        sleep(admin)

        def is_told() -> bool:
            options: ProducerOptions = {"delivery_timeout_ms": 1_000, "request_timeout_ms": 400}
            with Producer(cluster.bootstrap, **options) as late:
                with pytest.raises(PenstockError) as refused:
                    late.send("t", b"after").result()
                return "hibernates" in refused.value.message  # or nobody answered in time

        wait_until(is_told, what="a producer is told why")
        with patient_channel(cluster.brokers[0].address) as channel:
            init = BrokerServiceStub(channel).InitProducer
            assert code_of(lambda: init(broker_pb2.InitProducerRequest())) is (
                ErrorCode.HIBERNATING
            )
            hello = group_pb2.MemberHello(group_id="readers", member_id="late")
            join = GroupServiceStub(channel).Join
            asked = [group_pb2.JoinRequest(hello=hello)]
            assert code_of(lambda: list(join(iter(asked)))) is ErrorCode.HIBERNATING
        begun.commit()
        wait_until(lambda: read(2), what="another")
        assert [record.value for record in seen] == [b"before", b"in a transaction"]
        reader.commit()

        def quiet() -> list[int]:
            return [one.log_ends for one in admin.describe_quiescence() if one.quiet]

        ends = wait_until(quiet, what="all has ended")
        wait_until(lambda: quiet() == ends, what="the broker is as quiet at a second look")

        sleep(admin, hibernating=False)
        with Producer(cluster.bootstrap) as producer:
            producer.send("t", b"awake").result()
        (awake,) = admin.describe_quiescence()
        assert not awake.quiet
        assert "has not heard" in awake.waiting_for[0]


def test_a_producer_waits_until_the_cluster_wakes(cluster: Cluster) -> None:
    with Admin(cluster.bootstrap) as admin, Producer(cluster.bootstrap) as producer:
        admin.create_topic("t", 1, 1)
        producer.send("t", b"first").result()
        sleep(admin)
        waiting = producer.send("t", b"second")
        producer.send("t", b"third")
        sleep(admin, hibernating=False)
        assert waiting.result().offset == 1
        producer.flush()


def test_the_command_shows_it(cluster: Cluster) -> None:
    with Admin(cluster.bootstrap) as admin:
        sleep(admin)
    env = {"PENSTOCK_BOOTSTRAP": cluster.bootstrap}
    done: Any = CliRunner().invoke(app, ["cluster", "describe", "-o", "json"], env=env)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["hibernating"] is True

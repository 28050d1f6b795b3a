"""A cluster that runs in plaintext comes to TLS, broker by broker, and back: nothing is lost.

While it serves both, the ports with TLS are as closed as those of a Strict cluster, and it tells
who does not use them yet.
"""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from support.load import Load, assert_nothing_noticed
from support.metrics import scrape
from support.migrating import Migrating, Mode
from support.waiting import wait_until
from support.wire import Wire

from penstock.client import Admin, Consumer, Producer, TopicPartition
from penstock.client.config import ClientOptions
from penstock.core.control.documents import FORMATS
from penstock.errors import ErrorCode, PenstockError
from penstock.proto.v1 import admin_pb2, broker_pb2, controller_pb2, journal_pb2, replication_pb2
from penstock.proto.v1.admin_pb2_grpc import AdminServiceStub
from penstock.proto.v1.broker_pb2_grpc import BrokerServiceStub
from penstock.proto.v1.controller_pb2_grpc import ControllerServiceStub
from penstock.proto.v1.journal_pb2_grpc import JournalServiceStub
from penstock.proto.v1.replication_pb2_grpc import ReplicationServiceStub
from penstock.rpc.channel import open_channel
from penstock.rpc.errors import error_from_rpc

TIMEOUT_S = 20.0


def small(**more: Any) -> dict[str, Any]:
    return {"partitions": 3, "keys": 3, "rate": 600, **more}


def test_a_cluster_gets_tls_and_gives_it_up_under_load_and_nothing_is_lost(
    tmp_path: Path,
) -> None:
    """Clients move between the rolls, while both kinds of ports are there."""
    with Migrating(tmp_path) as cluster:
        cluster.start()
        plain = Load(cluster, tmp_path / "1.jsonl", topic="plain", **small(group="readers"))
        with plain:
            cluster.roll(Mode.MIGRATE, "plain")
            plain.wait_writing()
            found = [plain.judge()]

        moved = small(
            bootstrap=cluster.secure_bootstrap,
            options=options_of(cluster),
            transactions=True,
        )
        with Load(cluster, tmp_path / "2.jsonl", topic="secured", **moved) as secured:
            cluster.roll(Mode.STRICT, "plain", "secured")
            secured.wait_writing()
            with Admin(cluster.bootstrap, **cluster.user("root")) as at_listen:
                cluster.wait_told(at_listen, set(cluster.bootstrap.split(",")))
            cluster.roll(Mode.MIGRATE, "plain", "secured")
            secured.wait_writing()
            found.append(secured.judge())

        with Load(cluster, tmp_path / "3.jsonl", topic="again", **small()) as again:
            cluster.roll(Mode.DISABLED, "plain", "secured", "again")
            again.wait_writing()
            found.append(again.judge())
        for verdict in (found[0], found[2]):
            assert_nothing_noticed(verdict)
        assert found[1].passed, found[1].to_dict()
        # It aborts transactions on purpose: their records are sent, and nobody reads them.
        assert (found[1].failed, found[1].unknown) == (0, 0)
        assert 0 < found[1].acknowledged == found[1].final
        assert read_back(cluster, "plain") == found[0].acknowledged
        assert read_back(cluster, "secured") == found[1].acknowledged


def options_of(cluster: Migrating) -> ClientOptions:
    """Of the administrator."""
    files = cluster.user("root")
    return ClientOptions(ca_file=files["ca_file"], token_file=files["token_file"])


def read_back(cluster: Migrating, topic: str) -> int:
    """How many records of a topic a plaintext client reads at the end."""
    with Consumer(cluster.bootstrap, isolation_level="read_committed") as consumer:
        parts = [
            TopicPartition(topic, part) for part in range(len(cluster.known(topic).partitions))
        ]
        consumer.assign(parts)
        consumer.seek_to_beginning(parts)
        seen = 0

        def at_end() -> bool:
            nonlocal seen
            seen += sum(batch.hi - batch.lo for batch in consumer.poll(timeout_s=0.5))
            lag = consumer.lag()
            return all(lag.get(part) == 0 for part in parts)

        wait_until(at_end, what=f"all of {topic} is read")
        return seen


# ------------------------------------------------------------ while both are there


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Migrating]:
    with Migrating(tmp_path_factory.mktemp("both"), brokers=2, mode=Mode.MIGRATE) as cluster:
        cluster.start()
        cluster.create_topic("t", assignment=[[0, 1], [1, 0]])
        cluster.wait_in_sync("t")
        yield cluster


def refusal(call: Callable[[], Any]) -> ErrorCode:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return error_from_rpc(caught.value).code


def test_clients_are_told_addresses_of_the_kind_they_use(both: Migrating) -> None:
    plain, secure = set(both.bootstrap.split(",")), set(both.secure.values())
    with Admin(both.bootstrap) as admin:
        told = admin.describe_cluster().brokers
        assert {f"{one.host}:{one.port}" for one in told} == plain
        assert all(one.stream_port for one in told)
    with Admin(both.secure_bootstrap, **both.user("root")) as admin:
        told = admin.describe_cluster().brokers
        assert {f"{one.host}:{one.port}" for one in told} == secure
        assert not any(one.stream_port for one in told), "its streams have no TLS"


def test_who_has_tls_follows_and_calls_by_tls(both: Migrating) -> None:
    for at, broker in both.brokers.items():
        log = broker.log_text()
        assert f'"address": "{both.internal[1 - at]}"' in log
        assert f'"controller": "{both.secure_controller}"' in log
    told = both.metadata(0).brokers
    assert all(one.secure_internal_port and not one.internal_port for one in told)


@pytest.mark.parametrize("token", ["none", "of another cluster"])
def test_nobody_gets_in_over_tls_without_a_token_that_counts(both: Migrating, token: str) -> None:
    foreign = both.user("mallory", aud=["penstock.other.cluster"])["token_file"].read_text()
    shown = () if token == "none" else (("authorization", f"Bearer {foreign}"),)

    def refused(method: Any, request: Any) -> bool:
        call = partial(method, request, timeout=TIMEOUT_S, metadata=shown)
        return refusal(call) is ErrorCode.UNAUTHENTICATED

    with open_channel(both.secure[0], both.servers.stranger().tls) as channel:
        broker, admin = BrokerServiceStub(channel), AdminServiceStub(channel)
        assert refused(broker.Metadata, broker_pb2.MetadataRequest())
        assert refused(broker.Produce, broker_pb2.ProduceRequest())
        assert refused(admin.DeleteTopics, admin_pb2.DeleteTopicsRequest())
        assert refused(admin.DescribeCluster, admin_pb2.DescribeClusterRequest())


def test_rules_hold_over_tls_and_nobody_is_asked_in_plaintext(both: Migrating) -> None:
    with Admin(both.secure_bootstrap, **both.user("ada")) as ada, Admin(both.bootstrap) as nobody:
        assert ada.list_topics() == []
        assert "t" in nobody.list_topics()
        with pytest.raises(PenstockError) as caught:
            ada.create_topic("hers", 1, 1)
        assert caught.value.code is ErrorCode.PERMISSION_DENIED
        nobody.create_topic("anyones", 1, 1)


def test_ports_with_tls_answer_nothing_in_plaintext(both: Migrating) -> None:
    for address in (both.secure[0], both.internal[0], both.secure_controller):
        with open_channel(address) as channel:
            ask = partial(BrokerServiceStub(channel).Metadata, broker_pb2.MetadataRequest())
            assert refusal(partial(ask, timeout=TIMEOUT_S)) is ErrorCode.UNREACHABLE


@pytest.mark.parametrize("who", ["stranger", "user"])
def test_ports_of_servers_with_tls_ask_for_the_certificate_of_one(
    both: Migrating, who: str
) -> None:
    """A stranger does not come through the handshake; a user is told whom the port is for."""
    holder = both.servers.stranger() if who == "stranger" else both.servers.user()
    expected = ErrorCode.UNREACHABLE if who == "stranger" else ErrorCode.UNAUTHENTICATED
    promise = journal_pb2.PromiseJournalRequest(controller_epoch=2**62)
    follower = replication_pb2.FollowerMessage()
    with open_channel(both.internal[0], holder.tls) as channel:
        journal, leading = JournalServiceStub(channel), ReplicationServiceStub(channel)
        assert refusal(lambda: journal.PromiseJournal(promise, timeout=TIMEOUT_S)) is expected
        answers = leading.Replicate(iter([follower]), timeout=TIMEOUT_S)
        assert refusal(lambda: next(answers)) is expected
    with open_channel(both.secure_controller, holder.tls) as channel:
        assert refusal(lambda: next(registering(channel))) is expected


def registering(channel: grpc.Channel) -> Any:
    """As broker 0."""
    register = controller_pb2.Register(
        broker_id=0, incarnation="forged", directory_id="forged", host="h", port=1, formats=FORMATS
    )
    requests = iter([controller_pb2.SessionRequest(register=register)])
    return ControllerServiceStub(channel).Session(requests, timeout=TIMEOUT_S)


def test_a_broker_with_tls_registers_for_itself_only(both: Migrating) -> None:
    with both.servers.broker(1).channel(both.secure_controller) as channel:
        assert refusal(lambda: next(registering(channel))) is ErrorCode.PERMISSION_DENIED


# ------------------------------------------------------------ who is left


def test_who_calls_in_plaintext_is_told_until_nobody_does(both: Migrating) -> None:
    """Servers with TLS are not among them, whatever they do: followers, metrics, sessions."""

    def callers() -> dict[str, admin_pb2.PlaintextCaller]:
        with both.servers.broker(0).channel(both.internal[0]) as channel:
            request = admin_pb2.DescribeClusterRequest()
            answer = AdminServiceStub(channel).DescribeCluster(request, timeout=TIMEOUT_S)
        assert answer.plaintext.watched_ms > 0
        return {one.host: one for one in answer.plaintext.callers}

    both.wait_leader("t", 0, 0)
    with Producer(both.bootstrap) as producer:
        producer.send("t", b"still here", partition=0).result()
        assert callers()["127.0.0.1"].open, "its stream"
        page = scrape(both.metrics_ports[0])
        assert page["penstock_plaintext_clients"] == 1
    with Producer(both.secure_bootstrap, **both.user("root")) as moved:

        def quiet() -> bool:
            moved.send("t", b"by TLS", partition=0).result()
            (caller,) = callers().values()
            return not caller.open and caller.idle_ms > 3_000

        wait_until(quiet, what="nobody has called in plaintext for three seconds")


def test_of_a_broker_without_plaintext_beside_tls_nothing_is_told(tmp_path: Path) -> None:
    with Migrating(tmp_path, brokers=1) as cluster:
        cluster.start()
        with Wire(cluster.brokers[0].address) as wire:
            answer = wire.call(wire.admin.DescribeCluster, admin_pb2.DescribeClusterRequest())
        assert not answer.HasField("plaintext")

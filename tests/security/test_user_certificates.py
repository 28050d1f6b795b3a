"""Users who log in by certificate, in a cluster of real processes: what works, and attacks.

Position: on the network, with a certificate of the users' CA, of the cluster's, or of neither.
Outcome: a user's certificate never counts as a server's, nor a server's as a user's.
"""

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from support import command_line
from support.background import PAUSE_S, Background
from support.channels import patient_channel
from support.cluster import Cluster
from support.secure import Certificates
from support.user_certificates import Leaf, UserCertificates, replace
from support.waiting import wait_until

from penstock.client import Admin, Consumer, Producer
from penstock.core.authorization import CLUSTER as WHOLE
from penstock.core.authorization import Kind, Operation, Prefix, Resource, Rule
from penstock.core.control.documents import FORMATS
from penstock.core.types import BrokerId
from penstock.errors import ErrorCode, PenstockError, UnreachableError
from penstock.proto.v1 import broker_pb2, controller_pb2, journal_pb2, replication_pb2
from penstock.proto.v1.broker_pb2_grpc import BrokerServiceStub
from penstock.proto.v1.controller_pb2_grpc import ControllerServiceStub
from penstock.proto.v1.journal_pb2_grpc import JournalServiceStub
from penstock.proto.v1.replication_pb2_grpc import ReplicationServiceStub
from penstock.rpc.errors import error_from_rpc
from penstock.rpc.streams.tcp import open_tcp_stream
from penstock.rpc.tls import Tls
from penstock_broker.certificates.authority import Authority
from penstock_broker.certificates.names import ServerName

TIMEOUT_S = 20.0
TOPIC = "t"


@dataclass(frozen=True)
class Secured:
    """The cluster, and those who use it."""

    cluster: Cluster
    users: UserCertificates

    @property
    def certificates(self) -> Certificates:
        assert self.cluster.certificates is not None
        return self.cluster.certificates

    @property
    def addresses(self) -> list[str]:
        """Where certificates are shown, by broker id."""
        brokers = sorted(self.cluster.metadata().brokers, key=lambda info: info.broker_id)
        return [f"{info.host}:{info.certificate_port}" for info in brokers]

    @property
    def bootstrap(self) -> str:
        return ",".join(self.addresses)

    def admin(self, name: str = "root", **more: Any) -> Admin:
        return Admin(self.bootstrap, request_timeout_ms=20_000, **self.users.options(name), **more)

    def log_text(self) -> str:
        return "".join(broker.log_text() for broker in self.cluster.brokers.values())


@contextmanager
def secured_cluster(path: Path, brokers: int = 2) -> Iterator[Secured]:
    with Cluster(path / "cluster", brokers=brokers, secure=True, start=False) as cluster:
        assert cluster.certificates is not None
        users = UserCertificates(path / "users", cluster.certificates.authority)
        for broker in cluster.brokers.values():
            broker.arguments += ["--certificate-listen", "127.0.0.1:0"]
            broker.arguments += ["--users-ca", str(users.ca), "--admin", "cert:root"]
        cluster.controller.arguments += ["--admin", "cert:root"]
        cluster.start()
        yield Secured(cluster, users)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with secured_cluster(tmp_path_factory.mktemp("certified")) as made:
        made.cluster.create_topic(TOPIC, partitions=2, replication_factor=2)
        yield made


def allow(secured: Secured, name: str, topic: str = TOPIC) -> None:
    """To write and read one topic, in a group and in transactions. Whoever knows the rule of the
    topic, the last, knows the others."""
    who = (f"cert:{name}",)
    both = (Operation.READ, Operation.WRITE)
    with secured.admin() as root:
        group = Resource(Kind.GROUP, f"{name}-group")
        root.alter_access(group, [Rule(principals=who, operations=(Operation.READ,))])
        ids = Prefix(Kind.TRANSACTIONAL_ID, f"{name}-")
        rule = Rule(principals=who, operations=(Operation.WRITE,), prefix=ids)
        root.alter_access(WHOLE, [rule])
        root.alter_access(Resource(Kind.TOPIC, topic), [Rule(principals=who, operations=both)])
    with secured.admin(name) as known:
        wait_until(lambda: topic in known.list_topics(), what="the rules arrive")


def refusal(call: Callable[[], Any]) -> PenstockError:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return error_from_rpc(caught.value)


def metadata_at(channel: grpc.Channel, **more: Any) -> broker_pb2.MetadataResponse:
    request = broker_pb2.MetadataRequest()
    return BrokerServiceStub(channel).Metadata(request, timeout=TIMEOUT_S, **more)


# ------------------------------------------------------------ what works


def test_a_user_without_rules_may_do_nothing(secured: Secured) -> None:
    with secured.admin("nobody") as nobody:
        assert nobody.list_topics() == []
        with pytest.raises(PenstockError) as raised:
            nobody.create_topic("hers", 1)
    assert raised.value.code is ErrorCode.PERMISSION_DENIED
    assert "cert:nobody" in raised.value.message


def test_produce_consume_groups_and_transactions_work_under_rules(secured: Secured) -> None:
    secured.cluster.create_topic("ledger", partitions=2, replication_factor=2)
    allow(secured, "ada", "ledger")
    options = secured.users.options("ada")
    with Producer(secured.bootstrap, **options) as producer:
        for number in range(20):
            producer.send("ledger", b"%d" % number).result(30)
        with pytest.raises(PenstockError) as raised:
            producer.send(TOPIC, b"not hers").result(30)
        assert raised.value.code is ErrorCode.UNKNOWN_TOPIC
    with (
        Producer(secured.bootstrap, transactional_id="ada-1", **options) as producer,
        producer.transaction() as tx,
    ):
        tx.send("ledger", b"in a transaction")
    with (
        pytest.raises(PenstockError) as raised,
        Producer(secured.bootstrap, transactional_id="bobs", **options) as producer,
        producer.transaction() as tx,
    ):
        tx.send("ledger", b"not hers")
    assert raised.value.code is ErrorCode.PERMISSION_DENIED
    seen: set[bytes | None] = set()
    with Consumer(
        secured.bootstrap, group_id="ada-group", auto_offset_reset="earliest", **options
    ) as consumer:
        consumer.subscribe(["ledger"])

        def all_seen() -> bool:
            for batch in consumer.poll(0.2):
                seen.update(batch.values())
            return len(seen) == 21

        wait_until(all_seen, what="everything is consumed")
        consumer.commit()
    with secured.admin() as root:
        assert sum(each.records or 0 for each in root.group_lag("ada-group").values()) == 0


def test_a_user_is_told_addresses_that_take_certificates_and_no_more(secured: Secured) -> None:
    """Not the ports of servers, and no port for message streams, which ask for tokens."""
    with secured.users.channel(secured.addresses[0], "ada") as channel:
        told = metadata_at(channel).brokers
    assert sorted(f"{info.host}:{info.port}" for info in told) == sorted(secured.addresses)
    for info in told:
        assert (info.stream_port, info.internal_port, info.replication_port) == (0, 0, 0)
        assert (info.certificate_port, info.incarnation) == (0, "")


def test_with_a_certificate_and_a_token_the_port_decides(secured: Secured) -> None:
    """There a token is not looked at; where tokens are asked for, a certificate is not."""
    shown = (("authorization", "Bearer not.a.token"),)
    with secured.users.channel(secured.addresses[0], "ada") as channel:
        assert metadata_at(channel, metadata=shown).cluster_id
    with secured.users.channel(secured.cluster.brokers[0].address, "ada") as channel:
        assert refusal(lambda: metadata_at(channel)).code is ErrorCode.UNAUTHENTICATED


# ------------------------------------------------------------ certificates that name no user


@pytest.mark.parametrize(
    ("leaf", "why"),
    [
        (Leaf([]), "has 0 common names"),
        (Leaf(["ada", "root"]), "has 2 common names"),
        (Leaf(["root\nada"]), "all printable"),
        (Leaf(["root\u202e"]), "all printable"),
        (Leaf(["r" * 65]), "1 to 64"),
        (Leaf(["root"], ["spiffe://penstock/secure-cluster/broker/0"]), "names a server"),
        (Leaf(["root"], ["https://x", "SPIFFE://penstock/other/controller"]), "names a server"),
    ],
    ids=["no name", "two names", "newline", "bidi", "long", "broker", "controller"],
)
def test_a_certificate_that_is_not_clearly_one_users_is_refused(
    secured: Secured, leaf: Leaf, why: str
) -> None:
    with secured.users.channel(secured.addresses[0], "odd", leaf) as channel:
        error = refusal(lambda: metadata_at(channel))
    assert error.code is ErrorCode.UNAUTHENTICATED
    assert why in error.message
    assert "one CN" in error.message
    assert why in secured.cluster.brokers[0].log_text(), "the audit log has it"


def test_a_certificate_that_has_ended_gets_no_connection(secured: Secured) -> None:
    leaf = Leaf(["root"], left_s=-1)
    with secured.users.channel(secured.addresses[0], "late", leaf) as channel:
        assert refusal(lambda: metadata_at(channel)).code is ErrorCode.UNREACHABLE


# ------------------------------------------------------------ 3, 5, 6: users are no servers


def promise(channel: grpc.Channel) -> Any:
    request = journal_pb2.PromiseJournalRequest(controller_epoch=2**62)
    return JournalServiceStub(channel).PromiseJournal(request, timeout=TIMEOUT_S)


def replicate(channel: grpc.Channel) -> Any:
    hello = replication_pb2.FollowerMessage(
        hello=replication_pb2.FollowerHello(broker_id=1, incarnation="x", window_bytes=1_000)
    )
    return next(ReplicationServiceStub(channel).Replicate(iter([hello]), timeout=TIMEOUT_S))


def session(channel: grpc.Channel) -> Any:
    register = controller_pb2.Register(
        broker_id=0, incarnation="forged", directory_id="forged", host="h", port=1, formats=FORMATS
    )
    requests = iter([controller_pb2.SessionRequest(register=register)])
    return next(ControllerServiceStub(channel).Session(requests, timeout=TIMEOUT_S))


def reflection(channel: grpc.Channel) -> Any:
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    return next(stub.ServerReflectionInfo(iter([request]), timeout=TIMEOUT_S))


@pytest.mark.parametrize("call", [promise, replicate, session, reflection])
def test_nothing_of_servers_is_at_the_port_for_certificates(
    secured: Secured, call: Callable[[grpc.Channel], Any]
) -> None:
    """Not even for an administrator."""
    with secured.users.channel(secured.addresses[0], "root") as channel:
        with pytest.raises(grpc.RpcError) as caught:
            call(channel)
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize("uri", ["", ServerName("secure-cluster", BrokerId(1)).uri])
async def test_a_users_certificate_is_no_servers_whatever_it_says(
    secured: Secured, uri: str
) -> None:
    leaf = Leaf(["root"], [uri] if uri else [])
    there = {
        secured.cluster.internal[0]: (promise, replicate, metadata_at),
        secured.cluster.controller.address: (session,),
    }
    for address, calls in there.items():
        with secured.users.channel(address, "forged", leaf) as channel:
            for call in calls:
                error = refusal(partial(call, channel))
                assert error.code is ErrorCode.UNREACHABLE, call
    info = next(each for each in secured.cluster.metadata(0).brokers if each.broker_id == 0)
    stream = await open_tcp_stream(
        f"127.0.0.1:{info.replication_port}", Tls(secured.users.files("forged", leaf))
    )
    with pytest.raises(UnreachableError, match="certificate"):
        await stream.receive()
    await stream.close()


@pytest.mark.parametrize(
    "who", ["broker", "controller", "a user of its CA", "nobody", "a stranger"]
)
def test_no_other_ca_lets_users_in(secured: Secured, tmp_path: Path, who: str) -> None:
    """A server's certificate is no user's, even if its subject has an administrator's name."""
    certificates = secured.certificates
    if who == "a stranger":
        strangers = UserCertificates(tmp_path, certificates.authority)
        tls = Tls(strangers.files("root"))
    else:
        holder = {
            "broker": certificates.broker(0),
            "controller": certificates.controller(),
            "a user of its CA": certificates.user("root"),
            "nobody": certificates.stranger(),
        }[who]
        tls = holder.tls
    with patient_channel(secured.addresses[0], tls) as channel:
        assert refusal(lambda: metadata_at(channel)).code is ErrorCode.UNREACHABLE


# ------------------------------------------------------------ the end of a certificate, other files


def test_a_stream_ends_with_its_certificate(secured: Secured) -> None:
    allow(secured, "short")
    options = secured.users.options("short", Leaf(["short"], left_s=15))
    with Producer(secured.bootstrap, delivery_timeout_ms=2_000, **options) as producer:

        def let_in() -> bool:
            with suppress(PenstockError):  # a machine that stood still for two seconds
                producer.send(TOPIC, b"before").result(30)
                return True
            return False

        wait_until(let_in, what="the stream is there")

        def refused() -> str:
            """Why, once the broker says whose certificate it is; a call may end otherwise, too."""
            try:
                producer.send(TOPIC, b"after").result(30)
            except PenstockError as error:
                return error.message if "cert:short" in error.message else ""
            return ""

        message = wait_until(refused, what="the stream ends", timeout_s=30)
    assert "expired" in message or "ended" in message


class Producing(Background):
    """Appends to a topic all the time, over one client that stays. Whatever fails is kept."""

    def __init__(self, secured: Secured, topic: str, **options: Any) -> None:
        super().__init__()
        self._producer = Producer(secured.bootstrap, **options)
        self._topic = topic
        self.acknowledged = 0

    def __exit__(self, *exception: object) -> None:
        super().__exit__(*exception)
        self._producer.close()

    def _run(self) -> None:
        while not self._stop.wait(PAUSE_S):
            try:
                self._producer.send(self._topic, b"%d" % self.acknowledged).result(30)
                self.acknowledged += 1
            except Exception as error:  # noqa: BLE001 - the test reads it
                self.failures.append(error)


def gets_in(secured: Secured, tls: Tls) -> bool:
    with patient_channel(secured.addresses[0], tls) as channel:
        try:
            metadata_at(channel)
        except grpc.RpcError as error:
            if error_from_rpc(error).code is ErrorCode.UNREACHABLE:
                return False
            raise
        return True


def test_certificates_and_the_users_ca_change_under_load_and_nobody_notices(
    tmp_path: Path,
) -> None:
    """The first certificate ends while the load runs, and its CA is trusted no longer."""
    with secured_cluster(tmp_path) as secured:
        users = secured.users
        secured.cluster.create_topic(TOPIC, replication_factor=2)
        allow(secured, "ada")
        # Brokers look for CAs, and clients for files, every ten seconds.
        options = users.options("ada", Leaf(["ada"], left_s=45))
        ended_s = time.monotonic() + 46
        former = Tls(users.files("former"))
        assert gets_in(secured, former)
        with Producing(secured, TOPIC, **options) as producing:
            wait_until(lambda: producing.acknowledged > 0, what="it is written")
            old, new = users.authority, Authority.new("the next CA of users")
            users.trust(old, new)
            wait_used(secured, 2)
            users.authority = new
            users.files("ada")
            next_one = Tls(users.files("next"))
            wait_until(lambda: gets_in(secured, next_one), what="the new CA counts")
            users.trust(new)
            wait_until(lambda: not gets_in(secured, former), what="the old does not", timeout_s=40)
            wait_until(
                lambda: time.monotonic() > ended_s,
                what="the first certificate has ended",
                timeout_s=60,
            )
            before = producing.acknowledged
            wait_until(lambda: producing.acknowledged > before + 20, what="some more are written")
        assert producing.failures == []
        assert gets_in(secured, next_one)


def wait_used(secured: Secured, times: int) -> None:
    """Until every broker says that it has begun so often to use another users' CA."""

    def used() -> bool:
        logs = (broker.log_text() for broker in secured.cluster.brokers.values())
        return all(log.count("using another users' CA") >= times for log in logs)

    wait_until(used, what="the users' CA is used", timeout_s=40)


def test_a_users_ca_that_is_the_clusters_is_refused_and_one_that_is_gone_lets_nobody_in(
    tmp_path: Path,
) -> None:
    with secured_cluster(tmp_path, brokers=1) as secured:
        users, broker = secured.users, secured.cluster.brokers[0]
        ada = Tls(users.files("ada"))
        assert gets_in(secured, ada)
        users.trust(users.authority, secured.certificates.authority)
        wait_until(
            lambda: "is the CA of the cluster's servers" in broker.log_text(),
            what="it says why not",
            timeout_s=40,
        )
        assert gets_in(secured, ada), "the former CA stays"
        assert not gets_in(secured, secured.certificates.broker(0).tls)

        replace(users.ca, b"-----BEGIN CERTIFICATE-----\nhalf of")
        wait_until(lambda: "broken one" in broker.log_text(), what="it says why", timeout_s=40)
        assert gets_in(secured, ada), "half a file changes nothing"

        users.ca.unlink()
        wait_until(lambda: not gets_in(secured, ada), what="nobody gets in", timeout_s=40)
        assert not gets_in(secured, secured.certificates.broker(0).tls)
        broker.stop()
        broker.start()
        assert not gets_in(secured, ada), "a broker serves without the file"
        users.trust(users.authority)
        wait_until(lambda: gets_in(secured, ada), what="the file is back", timeout_s=40)


# ------------------------------------------------------------ the command, hints


def penstock(secured: Secured, *words: str) -> "subprocess.CompletedProcess[str]":
    bare = {key: value for key, value in os.environ.items() if not key.startswith("PENSTOCK_")}
    return command_line.run(
        *words, env={**bare, "PENSTOCK_CA_FILE": str(secured.users.clusters_ca)}
    )


def test_the_command_takes_a_certificate(secured: Secured) -> None:
    files = secured.users.files("root")
    shown = ["--cert", str(files.certificate), "--key", str(files.key)]
    at = ["--bootstrap", secured.bootstrap]
    told = penstock(secured, *shown, "topic", "list", *at)
    assert told.returncode == 0, told.stderr
    assert TOPIC in told.stdout
    words = ["verify", "run", "--duration", "1", "--members", "1", "--rate", "100"]
    told = penstock(
        secured, *shown, *words, "--topic", "verified", "--replicas", "1", "--group", "g", *at
    )
    assert told.returncode == 0, told.stderr


@pytest.mark.parametrize("shown", ["nothing", "a stranger's"])
def test_the_command_says_what_a_closed_connection_means(
    secured: Secured, tmp_path: Path, shown: str
) -> None:
    words = ["topic", "list", "--bootstrap", secured.bootstrap]
    if shown != "nothing":
        stranger = UserCertificates(tmp_path, secured.certificates.authority).files("root")
        words = ["--cert", str(stranger.certificate), "--key", str(stranger.key), *words]
    told = penstock(secured, *words)
    assert told.returncode == 1
    (line,) = told.stderr.strip().splitlines()
    assert "asks for a certificate" in line
    assert "--cert" in line

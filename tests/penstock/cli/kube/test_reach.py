"""Commands reach brokers through a real API server's port-forward; frames as they come apart."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NoReturn

import pytest
from support.apiserver import ApiServer
from support.cluster import Cluster
from support.console import ConsoleProcess
from support.kube_scene import PENSTOCK, Scene
from support.reached import Reachable, reached
from support.transaction_wire import TransactionalProducer
from support.waiting import wait_until
from typer.testing import CliRunner

from penstock.cli.kube.choice import KubeChoice, connect
from penstock.cli.kube.forward import Forwarder, reason_of
from penstock.cli.kube.frames import BINARY, Frame, FrameError, FrameReader
from penstock.cli.kube.reach import bootstrap_addresses, reach_cluster, reach_only
from penstock.cli.main import app
from penstock.client import LATEST, Admin, Consumer, Producer, TopicPartition
from penstock.core.manifest.objects import SecurityMode
from penstock.errors import MisuseError
from penstock.kubernetes.errors import KubernetesError
from penstock.kubernetes.resources import path_of

BROKERS = 2


@pytest.fixture(scope="module")
def reachable(
    api_server: ApiServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Reachable]:
    """Two brokers."""
    with reached(api_server, tmp_path_factory.mktemp("reach"), BROKERS) as found:
        found.cluster.create_topic("flights", assignment=[[0], [1]])
        yield found


def test_commands_reach_every_broker(reachable: Reachable) -> None:
    assert "flights" in reachable.ok("topic", "list")
    seen = json.loads(reachable.ok("cluster", "describe", "-o", "json"))
    assert [one["broker"] for one in seen["brokers"]] == [0, 1]
    lines = "".join(f"key{i}:value{i}\n" for i in range(2_000))
    reachable.ok("produce", "flights", "-K", ":", stdin=lines)
    read = reachable.ok("consume", "flights", "-e", "-K", ":")
    assert sorted(read.splitlines()) == sorted(lines.splitlines())
    offsets = json.loads(reachable.ok("offsets", "flights", "-o", "json"))
    assert sum(one["records"] for one in offsets) == 2_000
    assert all(one["records"] for one in offsets)  # both brokers


def test_the_only_cluster_of_a_namespace_is_found(reachable: Reachable) -> None:
    process = reachable.start("topic", "list", cluster=False)
    try:
        out, err = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == 0, err.decode()
    assert b"flights" in out
    assert err.decode() == f"using Cluster {reachable.name}, found through kubeconfig\n"


def test_without_any_option_the_only_cluster_of_the_kubeconfig_is_found(
    reachable: Reachable, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(reachable.scene.kubeconfig))
    path = path_of("Cluster", reachable.scene.namespace, "flights")
    cluster = reachable.scene.server.request("GET", path)
    monkeypatch.setattr("penstock.cli.kube.reach.find_visible_clusters", lambda _: [cluster])
    found = reach_only()
    assert found is not None
    try:
        assert found.name == reachable.name
    finally:
        found.close()
    assert capsys.readouterr().err == f"using Cluster {found.name}, found through kubeconfig\n"


def test_an_api_server_that_does_not_answer_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else all that is said is that nothing listens on localhost."""
    clusters = [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}]
    contexts = [{"name": "c", "context": {"cluster": "c", "user": "u"}}]
    users = [{"name": "u", "user": {"token": "none"}}]
    file = tmp_path / "kubeconfig"
    known = {"clusters": clusters, "contexts": contexts, "users": users, "current-context": "c"}
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "Config", **known}))
    monkeypatch.setenv("KUBECONFIG", str(file))
    assert reach_only() is None
    assert capsys.readouterr().err == (
        "penstock: no Cluster was looked for on Kubernetes: the Kubernetes API at "
        "https://127.0.0.1:1 does not answer GET /apis/penstock.dev/v1alpha1/clusters: it cannot "
        "be reached; check the network and the configured address\n"
    )


def why(reachable: Reachable, *thing: str) -> list[dict[str, object]]:
    """What it finds about transactions, and what it could not read of them."""
    where = ["--kubeconfig", str(reachable.scene.kubeconfig), "-n", reachable.scene.namespace]
    done = CliRunner().invoke(app, ["why", *thing, *where, "-o", "json"])
    told = json.loads(done.stdout)
    assert told["ready"], "the Cluster says so of itself"
    findings: list[dict[str, object]] = told["findings"]
    found = [one for one in findings if "transaction" in f"{one['code']} {one['what']}"]
    assert (done.exit_code, told["served"]) == (1 if found else 0, not found)
    return found


def test_why_asks_the_brokers_whose_transaction_holds_up_readers(
    api_server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One broker: several would have to reach each other."""
    with reached(api_server, tmp_path, 1) as reachable:
        check_why(reachable, monkeypatch)


def check_why(reachable: Reachable, monkeypatch: pytest.MonkeyPatch) -> None:
    reachable.cluster.create_topic("paid", partitions=2)
    reachable.scene.topic("paid")
    producer = TransactionalProducer(reachable.cluster, "payments-0", client_id="billing").init()
    producer.send("paid", b"a", partition=0)
    producer.send("paid", b"a", b"b", partition=1)
    assert why(reachable) == [], "it is young"

    monkeypatch.setattr("penstock.cli.kube.transactions.BLOCKING_MS", 0)
    (found,) = why(reachable)
    assert found == {
        "subject": "transaction 'payments-0'",
        "code": "transaction-open",
        "what": "of client 'billing' at 127.0.0.1 is open and blocks readers of committed "
        "records in paid/0, paid/1",
        "since": found["since"],
        "evidence": [
            "paid/0: readers wait at offset 0, 1 before the end",
            "paid/1: readers wait at offset 0, 2 before the end",
        ],
        "do": "penstock txn abort payments-0, if its producer does not end it",
    }
    assert str(found["since"]).endswith("s")
    assert [one["code"] for one in why(reachable, "topic/paid")] == ["transaction-open"]
    producer.end(commit=True)
    assert why(reachable) == []


def test_large_records_and_speed_tests_pass_through(reachable: Reachable) -> None:
    reachable.cluster.create_topic("large", assignment=[[0], [1]])
    words = ["perf", "produce", "large", "--records", 300, "--record-bytes", 100_000, "-o", "json"]
    assert json.loads(reachable.ok(*words))["records"] == 300
    assert json.loads(reachable.ok("perf", "consume", "large", "-o", "json"))["records"] == 300


def test_verify_passes_through(reachable: Reachable) -> None:
    words = ["verify", "run", "--duration", 1, "--replicas", 1, "--partitions", 2, "-o", "json"]
    process = reachable.start(*words)
    try:
        out, err = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == 0, err.decode()
    verdict = json.loads(out)
    assert verdict["verdict"] == "PASS"
    assert verdict["acknowledged"] > 0


def test_a_restarted_broker_and_a_cut_forward_are_reached_again(reachable: Reachable) -> None:
    reachable.cluster.create_topic("restarted", assignment=[[0]])
    writer = reachable.start("produce", "restarted")
    reader = reachable.start("consume", "restarted", "--count", "3")
    try:
        assert writer.stdin is not None
        with Admin(reachable.cluster.brokers[1].address, resolve_address=_of(reachable)) as admin:

            def has_written(count: int) -> bool:
                return written() == count

            def written() -> int:
                where = TopicPartition("restarted", 0)
                return admin.list_offsets({where: LATEST})[where].offset

            for index, trouble in enumerate((None, "cut", "restart")):
                if trouble == "cut":
                    reachable.kubelet.cut()
                if trouble == "restart":
                    reachable.cluster.brokers[0].restart()
                writer.stdin.write(b"record %d\n" % index)
                writer.stdin.flush()
                wait_until(partial(has_written, index + 1), what=f"record {index} is written")
        _, err = writer.communicate(timeout=300)
        assert writer.returncode == 0, err.decode()
        out, err = reader.communicate(timeout=300)
        assert out.decode().splitlines() == ["record 0", "record 1", "record 2"], err.decode()
    finally:
        writer.kill()
        reader.kill()


def _of(reachable: Reachable) -> Callable[[str], str]:
    """Straight to the processes, past Kubernetes."""
    ports = {
        f"flights-broker-{index}": broker.address
        for index, broker in reachable.cluster.brokers.items()
    }
    return lambda address: ports.get(address.partition(".")[0], address)


def test_a_client_connects_where_it_is_told_and_believes_what_it_was_advertised(
    reachable: Reachable,
) -> None:
    reachable.cluster.create_topic("told", assignment=[[0], [1]])
    resolve = _of(reachable)
    bootstrap = f"flights-broker-0.flights-brokers.{reachable.scene.namespace}.svc:9092"
    with Producer(bootstrap, resolve_address=resolve) as producer:
        reports = [
            producer.send("told", b"x", partition=partition).result() for partition in (0, 1)
        ]
    assert [one.base_offset for one in reports] == [0, 0]
    with Admin(bootstrap, resolve_address=resolve) as admin:
        addresses = [broker.address for broker in admin.describe_cluster().brokers]
    assert addresses[0] == bootstrap
    with Consumer(bootstrap, resolve_address=resolve) as consumer:
        consumer.assign([TopicPartition("told", 0), TopicPartition("told", 1)])
        seen: list[bytes | None] = []
        while len(seen) < 2:
            seen += [record.value for batch in consumer.poll(1) for record in batch.records()]
    assert seen == [b"x", b"x"]


def test_ctrl_c_ends_a_reader_and_its_forwards(reachable: Reachable) -> None:
    before = reachable.kubelet.forwards
    reader = reachable.start("consume", "flights")
    try:
        wait_until(lambda: reachable.kubelet.forwards > before, what="the reader is connected")
        reader.send_signal(signal.SIGINT)
        _, err = reader.communicate(timeout=300)
    finally:
        reader.kill()
    assert reader.returncode == 130, err.decode()
    assert b"Traceback" not in err


def test_the_console_shows_a_cluster_until_ctrl_c(reachable: Reachable, tmp_path: Path) -> None:
    wait_until(lambda: not reachable.kubelet.has_open(), what="commands before it have ended")
    where = ("--cluster", reachable.name)
    with ConsoleProcess(tmp_path, None, *where, environment=reachable.environment) as console:
        assert console.get("/").status == 401
        console.sign_in()
        console.see("/", "All is well", "2 of 2")
        console.see("/topics", "flights")
        assert reachable.kubelet.has_open()
        assert f"console of {reachable.name}, until Ctrl-C" in console.log
    assert "penstock:" not in console.log, "it complained"
    wait_until(lambda: not reachable.kubelet.has_open(), what="its port-forwards have ended")
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", console.port)) != 0


def test_a_cluster_without_running_brokers_says_so(reachable: Reachable) -> None:
    other = Scene(reachable.scene.server)
    other.cluster()
    process = Reachable(other, reachable.cluster, reachable.kubelet).start("topic", "list")
    try:
        _, err = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == 1
    assert f"Cluster {other.namespace}/flights has no running broker".encode() in err
    assert len(err.splitlines()) == 1


def test_bootstrap_and_cluster_together_are_refused(reachable: Reachable) -> None:
    process = reachable.start("topic", "list", "--bootstrap", "127.0.0.1:1")
    try:
        _, err = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == 2
    assert b"--bootstrap (or PENSTOCK_BOOTSTRAP) or --cluster, not both" in err


# ---------------------------------------------------------------- without Kubernetes


def test_a_forward_that_fails_is_told_once_and_closes_its_connection() -> None:
    told: list[str] = []

    def refuse(pod: str, port: int) -> NoReturn:
        raise OSError(f"no way to {pod}:{port}")

    forwarder = Forwarder("c", "ns", refuse, told.append)
    try:
        address = forwarder.resolve("c-broker-1.c-brokers.ns.svc:9092")
        assert forwarder.resolve("c-broker-1.c-brokers.ns.svc:9092") == address
        host, _, port = address.rpartition(":")
        for _ in range(2):
            with socket.create_connection((host, int(port)), 60) as connection:
                assert connection.recv(1) == b""
        why = "no way to c-broker-1:9092; continuing without it"
        assert told == [f"cannot port-forward to pod c-broker-1: {why}"]
    finally:
        forwarder.close()


@pytest.mark.parametrize(
    "address",
    ["example.org:9092", "d-broker-0.d-brokers.ns.svc:9092", "c-broker-0.c-brokers.x.svc:9092",
     "c-broker-x.c-brokers.ns.svc:9092", "127.0.0.1:9092"],
)  # fmt: skip
def test_addresses_of_others_stay_as_they_are(address: str) -> None:
    forwarder = Forwarder("c", "ns", lambda pod, port: pytest.fail("opened"), lambda text: None)
    assert forwarder.resolve(address) == address


def test_the_longer_name_of_a_pod_is_the_same_pod() -> None:
    forwarder = Forwarder("c", "ns", lambda pod, port: pytest.fail("opened"), lambda text: None)
    try:
        short = forwarder.resolve("c-broker-0.c-brokers.ns.svc:9092")
        assert forwarder.resolve("c-broker-0.c-brokers.ns.svc.cluster.local:9092") == short
        assert forwarder.resolve("c-broker-1.c-brokers.ns.svc:9092") != short
    finally:
        forwarder.close()


def pod(name: str, *, ready: bool = True, **more: object) -> dict[str, object]:
    return {
        "metadata": {"name": name, **more},
        "status": {
            "phase": "Running" if ready is not None else "Pending",
            "conditions": [{"type": "Ready", "status": str(ready)}],
        },
    }


def test_ready_pods_are_asked_first_and_leaving_ones_never() -> None:
    pods = [
        pod("c-broker-0", ready=False),
        pod("c-broker-1"),
        pod("c-broker-2", deletionTimestamp="2026-01-01T00:00:00Z"),
        {**pod("c-broker-3"), "status": {"phase": "Pending"}},
    ]
    assert bootstrap_addresses("c", "ns", pods, SecurityMode.DISABLED) == [
        "c-broker-1.c-brokers.ns.svc:9092", "c-broker-0.c-brokers.ns.svc:9092",
    ]  # fmt: skip


def test_brokers_whose_mode_no_pod_shows_are_called_as_the_spec_says(api_server: ApiServer) -> None:
    """In plaintext, a Strict Cluster would look as if it were down."""
    scene = Scene(api_server)
    scene.cluster(strict=True)
    where = scene.path("/api/v1", "pods")
    pod = {"metadata": {"name": "flights-broker-0", "labels": scene.labels("broker")}}
    containers = [{"name": "renamed", "image": "penstock-broker:1"}]
    api_server.request("POST", where, {**pod, "spec": {"containers": containers}})
    scene.set_status("/api/v1", "pods", "flights-broker-0", {"phase": "Running"})
    api, told = connect(KubeChoice(kubeconfig=str(scene.kubeconfig))), list[str]()
    cluster = scene.get(PENSTOCK, "clusters", "flights")
    with pytest.raises(KubernetesError, match=r"configmaps \"flights-trust\" not found"):
        reach_cluster(api, cluster, told.append)
    (said,) = told
    assert said == (
        f"no pod of Cluster {scene.namespace}/flights has a container `broker`, which would show "
        "how it was started; it is called as its spec says: security.mode Strict"
    )
    newer = {**cluster, "spec": {"security": {"mode": "Stricter"}}}
    with pytest.raises(MisuseError, match=r"mode 'Stricter', which this release"):
        reach_cluster(api, newer, told.append)


def test_the_api_servers_reason_is_taken_out_of_a_refusal() -> None:
    refusal = OSError("Handshake status 403")
    vars(refusal)["resp_body"] = b'{"message": "pods is forbidden"}'
    assert reason_of(refusal) == "pods is forbidden"
    assert reason_of(OSError("plain")) == "plain"


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (
            b"500 Internal Server Error",
            "the pod has just been deleted, or is not running yet (HTTP 500",
        ),
        (b"404 Not Found", "the pod no longer exists (HTTP 404"),
        (b"418 I'm a teapot", "refused (HTTP 418"),
    ],
)
def test_a_refused_websocket_is_told_in_words_and_not_as_a_handshake(
    status: bytes, reason: str
) -> None:
    from websocket import WebSocketBadStatusException, create_connection  # noqa: PLC0415

    def refuse() -> None:
        with listening.accept()[0] as connection:
            while b"\r\n\r\n" not in connection.recv(10_000):
                pass
            connection.sendall(b"HTTP/1.1 " + status + b"\r\nContent-Length: 0\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listening:
        refusing = threading.Thread(target=refuse)
        refusing.start()
        with pytest.raises(WebSocketBadStatusException) as refused:
            create_connection(f"ws://127.0.0.1:{listening.getsockname()[1]}", timeout=120)
        refusing.join(120)
    assert reason_of(refused.value) == f"{reason} from the API server)"


class Relay:
    """A tunnel to a port of this machine."""

    def __init__(self, port: int) -> None:
        self.remote = socket.create_connection(("127.0.0.1", port), 20)

    def carry(self, local: socket.socket) -> None:
        def copy(source: socket.socket, target: socket.socket) -> None:
            with suppress(OSError):
                while data := source.recv(65_536):
                    target.sendall(data)
            with suppress(OSError):
                target.shutdown(socket.SHUT_RDWR)

        back = threading.Thread(target=copy, args=(self.remote, local))
        with self.remote:
            back.start()
            copy(local, self.remote)
            back.join(20)


def test_brokers_whose_pods_have_gone_are_passed_over(shared_broker: Cluster) -> None:
    told: list[str] = []

    def open_tunnel(pod: str, port: int) -> Relay:
        if pod != "c-broker-0":
            raise OSError("gone")
        return Relay(shared_broker.brokers[0].port)

    forwarder = Forwarder("c", "ns", open_tunnel, told.append)
    gone_first = [f"c-broker-{index}.c-brokers.ns.svc:9092" for index in (2, 1, 0)]
    shared_broker.create_topic("there")
    try:
        for _ in range(2):
            with Admin(gone_first, resolve_address=forwarder.resolve) as admin:
                assert "there" in admin.list_topics()
        assert sorted(told) == [
            f"cannot port-forward to pod c-broker-{index}: gone; continuing without it"
            for index in (1, 2)
        ]
    finally:
        forwarder.close()


ANNOUNCED = b"\x82\x03\x00\x84\x23" + b"\x82\x03\x01\x84\x23"


@pytest.mark.parametrize("step", [1, 2, 3, 7, 100_000])
def test_frames_come_apart_however_they_are_cut(step: int) -> None:
    large = bytes(70_000)
    stream = (
        ANNOUNCED
        + b"\x82\x03\x00hi"
        + b"\x89\x01p"
        + b"\x82\x7e\x01\x2d\x00" + b"m" * 300
        + b"\x02\x03\x00fi" + b"\x80\x03nal"
        + b"\x82\x7f" + (70_001).to_bytes(8, "big") + b"\0" + large
        + b"\x82\x05\x01oops"
        + b"\x88\x00"
    )  # fmt: skip
    reader = FrameReader()
    frames = [
        frame
        for start in range(0, len(stream), step)
        for frame in reader.feed(stream[start : start + step])
    ]
    assert frames == [
        Frame(BINARY, b"hi"), Frame(9, b"p"), Frame(BINARY, b"m" * 300), Frame(BINARY, b"fi"),
        Frame(BINARY, b"nal"), Frame(BINARY, large), Frame(BINARY, b"oops", error=True),
        Frame(8, b""),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "stream",
    [b"\x82\x83", b"\xf2\x01", b"\x82\x02\x05x", b"\x82\x02\x00x", b"\x82\x7f" + b"\x7f" * 8],
    ids=["masked", "reserved bits", "unknown channel", "bad announcement", "huge"],
)
def test_what_the_protocol_does_not_allow_is_an_error(stream: bytes) -> None:
    with pytest.raises(FrameError):
        list(FrameReader().feed(stream))


def test_a_tunnel_carries_both_ways_at_once_and_ends_with_either_side() -> None:
    from websocket import ABNF  # noqa: PLC0415

    from penstock.cli.kube.forward import WebSocketTunnel  # noqa: PLC0415

    def encode(data: bytes, opcode: int) -> bytes:
        return bytes(ABNF.create_frame(data, opcode).format())

    client, local = socket.socketpair()
    remote, server = socket.socketpair()
    carrying = threading.Thread(target=WebSocketTunnel(remote, encode).carry, args=(local,))
    carrying.start()
    client.settimeout(120)
    server.settimeout(120)
    try:
        size = (
            8 * 1024 * 1024
        )  # more than all buffers together: neither side may wait for the other

        def fill() -> None:
            for _ in range(size // 65_535 + 1):
                server.sendall(b"\x82\x7e\xff\xff\x00" + bytes(65_534))

        server.sendall(ANNOUNCED)
        filling = threading.Thread(target=fill)
        filling.start()
        client.sendall(b"request")
        read = 0
        while read < size:
            read += len(client.recv(1 << 20))
        filling.join(120)
        assert server.recv(100)[:2] == b"\x82\x88"  # masked, the channel and 7 bytes
        client.close()
        assert server.recv(1) == b""
    finally:
        carrying.join(120)
        for end in (client, server, local):
            end.close()
    assert not carrying.is_alive()


def test_help_needs_no_kubernetes_and_commands_say_what_to_install(tmp_path: Path) -> None:
    hide = "import sys\nfor name in ('kubernetes', 'urllib3', 'websocket', 'rich'):\n"
    (tmp_path / "sitecustomize.py").write_text(hide + "    sys.modules[name] = None\n")

    def run(*words: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-m", "penstock.cli", *words],
            env={**os.environ, "PYTHONPATH": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )

    assert run("--help").returncode == 0
    assert run("status", "--help").returncode == 0
    done = run("status", "--kubeconfig", str(tmp_path / "config"))
    assert done.returncode == 1
    assert "pip install 'penstock[cli]'" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_nothing_of_kubernetes_is_imported_by_the_client(tmp_path: Path) -> None:
    program = "import sys, penstock.client.exported; print('kubernetes' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert done.stdout == "False\n"

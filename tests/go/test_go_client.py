"""The Go client of examples/go and the Python client read what the other wrote, also past a kill.

The program is built once per run; without Go, or without its modules on this machine, the tests
are skipped and say so.
"""

import base64
import json
import os
import shutil
import signal
import subprocess
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.cluster import Cluster
from support.local import write_manifest
from support.missing import cannot_run
from support.waiting import wait_exit, wait_until

from penstock.client import LATEST, Admin, Codec, Consumer, Producer, Record, TopicPartition
from penstock.core.authorization import Kind, Operation, Resource, Rule
from penstock.core.partitioner import partition_for_key
from penstock_broker.certificates.authority import Authority
from penstock_broker.local.cluster import LocalCluster, LocalOptions
from penstock_broker.local.security import write_certificate, write_token

MODULE = Path(__file__).resolve().parents[2] / "examples" / "go"
PARTITIONS = 3
MakeCluster = Callable[..., Cluster]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built `penstock-go`."""
    if shutil.which("go") is None:
        cannot_run("go is not installed: the Go client is not tested")
    built = tmp_path_factory.mktemp("go") / "penstock-go"
    done = subprocess.run(
        ["go", "build", "-o", str(built), "./cmd/penstock-go"],
        cwd=MODULE,
        env={**os.environ, "GOPROXY": "off", "GOTOOLCHAIN": "local", "GOFLAGS": "-buildvcs=false"},
        capture_output=True,
        text=True,
        check=False,
    )
    offline = ("module lookup disabled", "requires go >=", "GOPROXY=off")
    if done.returncode and any(reason in done.stderr for reason in offline):
        cannot_run("the modules of examples/go are not here: run `go mod download` in it")
    assert done.returncode == 0, done.stderr
    return built


class GoProcess:
    """`penstock-go` under way; ended with the test."""

    def __init__(self, program: Path, folder: Path, *words: str) -> None:
        self._out = folder / f"{words[0]}.out"
        self._err = folder / f"{words[0]}.err"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                [program, *words, "--json"], stdin=subprocess.PIPE, stdout=out, stderr=err
            )

    def feed(self, records: list[dict[str, Any]]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.writelines(json.dumps(one).encode() + b"\n" for one in records)
        self.process.stdin.flush()

    def lines(self) -> list[dict[str, Any]]:
        """Whole lines printed so far."""
        whole, _, _ = self._out.read_bytes().rpartition(b"\n")
        return [json.loads(line) for line in whole.splitlines()]

    def finish(self) -> str:
        """Waits for its good end; what it said on standard error."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        code, said = self.ended()
        assert code == 0, said
        return said

    def ended(self) -> tuple[int, str]:
        """Waits for its end, good or bad: its code, and what it said on standard error."""
        return wait_exit(self.process, 60), self._err.read_text()

    def close(self) -> None:
        if self.process.stdin is not None and not self.process.stdin.closed:
            self.process.stdin.close()
        if self.process.poll() is None:
            self.process.kill()
        wait_exit(self.process, 20)


@pytest.fixture
def go(program: Path, tmp_path: Path) -> Iterator[Callable[..., GoProcess]]:
    started: list[GoProcess] = []

    def start(*words: str) -> GoProcess:
        started.append(GoProcess(program, tmp_path, *words))
        return started[-1]

    yield start
    for process in started:
        process.close()


def as_json(record: tuple[Any, ...]) -> dict[str, Any]:
    key, value, timestamp_ms, headers = record
    return {
        "key": text(key),
        "value": text(value),
        "timestamp_ms": timestamp_ms,
        "headers": [{"name": name, "value": text(content)} for name, content in headers],
    }


def from_json(line: dict[str, Any]) -> tuple[Any, ...]:
    return (
        data(line["key"]),
        data(line["value"]),
        line["timestamp_ms"],
        tuple((one["name"], data(one["value"])) for one in line.get("headers", ())),
    )


def text(content: bytes | None) -> str | None:
    return None if content is None else base64.b64encode(content).decode()


def data(content: str | None) -> bytes | None:
    return None if content is None else base64.b64decode(content)


def some_records(count: int, first: int = 0) -> list[tuple[Any, ...]]:
    """With keys, without; nulls and empties; headers; times up and down."""
    forms: list[Callable[[int], tuple[Any, ...]]] = [
        lambda i: (b"k%d" % (i % 40), b"value %d" % i, 1_700_000_000_000 + i, ()),
        lambda i: (b"k%d" % (i % 40), b"", 1_700_000_000_000 - i, (("n", b"%d" % i), ("n", None))),
        lambda i: (b"", b"of the empty key %d" % i, 0, (("größe", b""),)),
        lambda i: (None, b"\xff\x00 %d" % i, 1_700_000_000_000, ()),
        lambda i: (b"k%d" % (i % 40), None, 1_700_000_000_000, ()),
    ]
    return [forms[i % len(forms)](i) for i in range(first, first + count)]


def expect_all(seen: list[tuple[int, tuple[Any, ...]]], sent: list[tuple[Any, ...]]) -> None:
    """Each record once, keys in their partitions, each key's records in the order they went in."""
    per_key: defaultdict[bytes | None, list[tuple[Any, ...]]] = defaultdict(list)
    wanted: defaultdict[bytes | None, list[tuple[Any, ...]]] = defaultdict(list)
    for partition, record in seen:
        per_key[record[0]].append(record)
        if record[0] is not None:
            assert partition == partition_for_key(record[0], PARTITIONS)
    for record in sent:
        wanted[record[0]].append(record)
    # Records without a key are spread: they have no order.
    assert sorted(per_key.pop(None, [])) == sorted(wanted.pop(None, []))
    assert per_key == wanted


def read_all(bootstrap: str, topic: str) -> list[tuple[int, tuple[Any, ...]]]:
    """Everything up to the end, by the Python client."""
    partitions = [TopicPartition(topic, index) for index in range(PARTITIONS)]
    with Admin(bootstrap) as admin:
        ends = {
            one: listed.offset
            for one, listed in admin.list_offsets(dict.fromkeys(partitions, LATEST)).items()
        }
    found: list[Record] = []
    with Consumer(bootstrap) as consumer:
        consumer.assign(partitions)
        while any(consumer.position(one) < end for one, end in ends.items()):
            for batch in consumer.poll(1.0):
                found += batch.records()
    return [(one.partition, (one.key, one.value, one.timestamp_ms, one.headers)) for one in found]


def send_all(producer: Producer, topic: str, records: list[tuple[Any, ...]]) -> None:
    deliveries = [
        producer.send(topic, value, key, timestamp_ms=timestamp_ms, headers=headers)
        for key, value, timestamp_ms, headers in records
    ]
    for delivery in deliveries:
        delivery.result(120)


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_python_reads_exactly_what_go_wrote(
    shared_cluster: Cluster, go: Callable[..., GoProcess], codec: str
) -> None:
    topic = f"from-go-{codec}"
    shared_cluster.create_topic(topic, partitions=PARTITIONS)
    sent = some_records(2_345)
    writer = go("produce", "--bootstrap", shared_cluster.bootstrap, "--topic", topic,
                "--codec", codec)  # fmt: skip
    writer.feed([as_json(one) for one in sent])
    assert writer.finish() == f"{len(sent)} records acknowledged\n"
    expect_all(read_all(shared_cluster.bootstrap, topic), sent)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_go_reads_exactly_what_python_wrote(
    shared_cluster: Cluster, go: Callable[..., GoProcess], codec: Codec
) -> None:
    topic = f"from-python-{codec.name}"
    shared_cluster.create_topic(topic, partitions=PARTITIONS)
    sent = some_records(2_345)
    with Producer(shared_cluster.bootstrap, codec=codec) as producer:
        send_all(producer, topic, sent)
    reader = go("fetch", "--bootstrap", shared_cluster.bootstrap, "--topic", topic)
    reader.finish()
    expect_all([(line["partition"], from_json(line)) for line in reader.lines()], sent)


def test_both_go_on_when_a_leader_is_killed(
    make_cluster: MakeCluster, go: Callable[..., GoProcess]
) -> None:
    """Go and Python write and Go reads along while the leader of partition 0 is killed."""
    cluster = make_cluster(brokers=3)
    cluster.create_topic("t", partitions=PARTITIONS, configs={"min.insync.replicas": "2"})
    cluster.wait_in_sync("t")
    reader = go("fetch", "--bootstrap", cluster.bootstrap, "--topic", "t", "--follow")
    writer = go("produce", "--bootstrap", cluster.bootstrap, "--topic", "t", "--batch", "100")
    of_go = [(b"go-" + (key or b""), *rest) for key, *rest in some_records(2_000)]
    of_python = [(b"python-" + (key or b""), *rest) for key, *rest in some_records(1_000)]

    with Producer(cluster.bootstrap) as producer:
        writer.feed([as_json(one) for one in of_go[:1_000]])
        send_all(producer, "t", of_python[:500])
        wait_until(lambda: len(reader.lines()) == 1_500, what="Go reads the first 1,500")
        leader = cluster.leader("t", 0)
        # While Go writes on: some of these batches meet the dead leader.
        writer.feed([as_json(one) for one in of_go[1_000:]])
        cluster.brokers[leader].kill()
        send_all(producer, "t", of_python[500:])
    assert writer.finish() == f"{len(of_go)} records acknowledged\n"
    sent = of_go + of_python
    wait_until(lambda: len(reader.lines()) >= len(sent), what="Go reads all", timeout_s=40)
    reader.process.send_signal(signal.SIGINT)
    reader.finish()
    expect_all([(line["partition"], from_json(line)) for line in reader.lines()], sent)
    expect_all(read_all(cluster.bootstrap, "t"), sent)


def test_partitions_that_a_topic_gets_are_read_and_written(
    make_cluster: MakeCluster, go: Callable[..., GoProcess]
) -> None:
    """A key belongs where every other client puts it, also for who was there before."""
    cluster = make_cluster(brokers=1)
    cluster.create_topic("grows", partitions=1)
    reader = go("fetch", "--bootstrap", cluster.bootstrap, "--topic", "grows", "--follow")
    writer = go("produce", "--bootstrap", cluster.bootstrap, "--topic", "grows", "--batch", "1")
    before, *later = [(b"k%d" % number, b"v", 1, ()) for number in range(1_000)]
    writer.feed([as_json(before)])
    wait_until(lambda: len(reader.lines()) == 1, what="Go reads the first record")
    with Admin(cluster.bootstrap) as admin:
        admin.create_partitions("grows", PARTITIONS)
    cluster.wait_leaders("grows")

    def spread() -> bool:
        if later:
            writer.feed([as_json(later.pop())])
        return {line["partition"] for line in reader.lines()} == set(range(PARTITIONS))

    wait_until(spread, what="Go writes to the new partitions and reads them")
    writer.finish()
    sent = 1_000 - len(later)
    wait_until(lambda: len(reader.lines()) == sent, what="Go reads all")
    reader.process.send_signal(signal.SIGINT)
    reader.finish()


def test_mistakes_are_one_line(shared_cluster: Cluster, program: Path) -> None:
    for words, said in (
        (["produce", "--topic", "t", "--codec", "gzip"], "--codec is"),
        (["fetch"], "--topic is needed"),
        (["consume"], "usage: penstock-go produce|fetch"),
        (["fetch", "--topic", "not-there", "--timeout", "1s"], "not-there"),
    ):
        given = ["--bootstrap", shared_cluster.bootstrap] if words != ["consume"] else []
        done = subprocess.run(
            [program, *words, *given], capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 1
        assert done.stderr.startswith("penstock-go: ")
        assert said in done.stderr
        assert len(done.stderr.splitlines()) == 1


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """One broker with TLS, tokens and rules, and the topic "flights"."""
    folder = tmp_path_factory.mktemp("secure")
    manifest = write_manifest(folder, patient=True)
    options = LocalOptions(secure=True)
    with LocalCluster.from_manifest(manifest, data_dir=folder / "d", options=options) as cluster:
        yield cluster


def words_for(secure: LocalCluster, **files: object) -> list[str]:
    """Options that reach the cluster as its administrator, or with other files."""
    given = {**secure.directory.client_files, **files}
    ca, token = str(given["ca_file"]), str(given["token_file"])
    where = ["--bootstrap", secure.bootstrap, "--topic", "flights", "--timeout", "60s"]
    shown = [f"--{name}={given[name]}" for name in ("cert", "key") if name in given]
    return [*where, "--ca-file", ca, "--token-file", token, *shown]


def stored(secure: LocalCluster) -> int:
    """How many records the topic has."""
    files: Any = secure.directory.client_files
    with Admin(secure.bootstrap, **files) as admin:
        partitions = [TopicPartition("flights", index) for index in range(2)]
        listed = admin.list_offsets(dict.fromkeys(partitions, LATEST))
    return sum(one.offset for one in listed.values())


def test_go_shows_the_token_that_is_in_the_file_at_each_call(
    secure: LocalCluster, go: Callable[..., GoProcess], tmp_path: Path
) -> None:
    """Its holder's records get in; once the file has another token, that one is what counts."""
    token = tmp_path / "token"
    token.write_bytes(Path(secure.directory.client_files["token_file"]).read_bytes())
    before = stored(secure)
    writer = go("produce", *words_for(secure, token_file=token), "--batch", "1")
    sent = [as_json(one) for one in some_records(2)]
    writer.feed(sent[:1])
    wait_until(lambda: stored(secure) == before + 1, what="the record is stored")
    write_token(token, "not.a.token")
    writer.feed(sent[1:])
    code, said = writer.ended()
    assert code == 1
    assert "the token is refused" in said
    assert "not.a.token" not in said
    reader = go("fetch", *words_for(secure))
    reader.finish()
    assert len(reader.lines()) == before + 1 == stored(secure)


def test_go_believes_no_other_ca(secure: LocalCluster, program: Path, tmp_path: Path) -> None:
    ca = tmp_path / "ca.crt"
    ca.write_bytes(Authority.new("another").certificate)
    words = [*words_for(secure, ca_file=ca), "--timeout", "5s"]
    done = subprocess.run(
        [program, "fetch", *words], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 1
    assert "certificate" in done.stderr


def test_go_shows_a_certificate(
    secure: LocalCluster, go: Callable[..., GoProcess], tmp_path: Path
) -> None:
    """Whose user a rule lets write; the same certificate lets nobody read."""
    made = write_certificate(secure.directory.root, "ada", 1, tmp_path)
    rule = Rule(principals=(made.principal,), operations=(Operation.WRITE,))
    files: Any = secure.directory.client_files
    with Admin(secure.bootstrap, **files) as admin:
        admin.alter_access(Resource(Kind.TOPIC, "flights"), [rule])
    before = stored(secure)
    words = ["--bootstrap", made.bootstrap, "--topic", "flights", "--timeout", "60s"]
    shown = ["--ca-file", str(made.ca_file), "--cert", str(made.certificate_file)]
    shown += ["--key", str(made.key_file)]
    writer = go("produce", *words, *shown)
    writer.feed([as_json(one) for one in some_records(3)])
    assert writer.finish() == "3 records acknowledged\n"
    assert stored(secure) == before + 3
    reader = go("fetch", *words, *shown)
    code, said = reader.ended()
    assert code == 1
    assert "cert:ada" in said


def test_go_names_a_file_that_it_cannot_use(
    secure: LocalCluster, program: Path, tmp_path: Path
) -> None:
    words = tmp_path / "words"
    words.write_text("two words")
    missing = tmp_path / "missing"
    shown = {"token_file": "", "cert": words}
    for files, said in (
        (shown, "give both files"),
        (shown | {"key": missing}, f"the certificate {words} and its key"),
        ({"ca_file": missing}, f"{missing}"),
        ({"ca_file": words}, "holds no certificate"),
        ({"ca_file": ""}, "over TLS only"),
        ({"token_file": missing}, f"{missing}"),
        ({"token_file": words}, "must hold one token"),
    ):
        done = subprocess.run(
            [program, "fetch", *words_for(secure, **files)],
            capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode == 1
        (line,) = done.stderr.splitlines()
        assert line.startswith("penstock-go: ")
        assert said in line
        assert "two words" not in line

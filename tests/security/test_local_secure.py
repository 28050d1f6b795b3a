"""`penstock local up --secure`: TLS, tokens and rules of real processes, as users meet them."""

import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import jwt
import pytest
from support import command_line
from support.local import write_manifest
from support.waiting import wait_until

from penstock.client import Admin, Consumer, Producer
from penstock.client.cluster.streams import StreamPort
from penstock.client.group.contract import Event, Ready, StreamEnded
from penstock.client.group.membership import Membership
from penstock.errors import ErrorCode, PenstockError, UnreachableError
from penstock_broker.local.cluster import LocalCluster, LocalOptions
from penstock_broker.local.security import ADMIN_TOKEN_S, LocalSecurity, write_token
from penstock_broker.local.state import StateDirectory

TOPIC = "flights"


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    folder = tmp_path_factory.mktemp("secure")
    manifest = write_manifest(folder)
    options = LocalOptions(secure=True)
    with LocalCluster.from_manifest(manifest, data_dir=folder / "d", options=options) as cluster:
        yield cluster


@pytest.fixture
def issuing(secure: LocalCluster) -> LocalSecurity:
    return LocalSecurity(secure.directory, secure.cluster.name)


def files(secure: LocalCluster, **changes: str) -> Any:
    return {**secure.directory.client_files, **changes}


def penstock(secure: LocalCluster, *words: str, text: str = "", **environment: str) -> Any:
    """The command, as somebody who knows only the addresses and these variables."""
    bare = {key: value for key, value in os.environ.items() if not key.startswith("PENSTOCK_")}
    at = ("--bootstrap", secure.bootstrap)
    return command_line.run(*words, *at, env={**bare, **environment}, stdin=text)


def admin_variables(secure: LocalCluster) -> dict[str, str]:
    own = secure.directory.client_files
    return {"PENSTOCK_CA_FILE": own["ca_file"], "PENSTOCK_TOKEN_FILE": own["token_file"]}


def test_the_admin_produces_and_consumes_by_the_command(secure: LocalCluster) -> None:
    variables = admin_variables(secure)
    made = penstock(secure, "produce", TOPIC, text="one\ntwo\n", **variables)
    assert made.returncode == 0, made.stderr
    read = penstock(secure, "consume", TOPIC, "-o", "earliest", "-e", **variables)
    assert read.returncode == 0, read.stderr
    assert {"one", "two"} <= set(read.stdout.split())


def test_without_a_token_nobody_gets_in(secure: LocalCluster) -> None:
    ca = secure.directory.client_files["ca_file"]
    told = penstock(secure, "topic", "list", PENSTOCK_CA_FILE=ca)
    assert told.returncode == 1
    (line,) = told.stderr.strip().splitlines()
    assert "--token-file" in line


def test_without_tls_the_command_says_so(secure: LocalCluster) -> None:
    told = penstock(secure, "topic", "list")
    assert told.returncode == 1
    (line,) = told.stderr.strip().splitlines()
    assert "uses TLS" in line
    assert "--ca-file" in line


@pytest.mark.parametrize(
    "workload",
    [["--producers", "1", "--group", "g"], ["--transactions"], ["--pipe"], ["--ring"]],
    ids=["group", "transactions", "pipe", "ring"],
)
def test_a_verified_workload_uses_the_files_that_are_given(
    secure: LocalCluster, workload: list[str]
) -> None:
    own = secure.directory.client_files
    files = ["--ca-file", own["ca_file"], "--token-file", own["token_file"]]
    words = ["verify", "run", "--duration", "4", "--members", "1", "--rate", "200", "-o", "json"]
    topic = f"verified-{workload[-1].lstrip('-')}"
    told = penstock(secure, *files, *words, "--topic", topic, "--replicas", "1", *workload)
    assert told.returncode == 0, told.stderr
    verdict = json.loads(told.stdout)
    assert verdict["verdict"] == "PASS"
    assert verdict["acknowledged"] > 0


def test_a_user_without_rules_may_do_nothing(
    secure: LocalCluster, issuing: LocalSecurity, tmp_path: Path
) -> None:
    write_token(tmp_path / "ada.token", issuing.token("ada", 600))
    given = files(secure, token_file=str(tmp_path / "ada.token"))
    with Admin(secure.bootstrap, **given) as admin, pytest.raises(PenstockError) as raised:
        admin.create_topic("hers", 1)
    assert raised.value.code is ErrorCode.PERMISSION_DENIED
    assert "serviceaccount:local/ada" in raised.value.message


def test_a_ca_that_did_not_sign_is_not_believed(
    secure: LocalCluster, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("other")
    directory = StateDirectory(folder)
    directory.create()
    LocalSecurity(directory, "other").prepare(["controller"])
    given = files(secure, ca_file=directory.client_files["ca_file"])
    with (
        pytest.raises(UnreachableError, match="certificate is not accepted"),
        Admin(secure.bootstrap, **given) as admin,
    ):
        admin.describe_cluster()


def test_a_token_of_another_cluster_is_refused(
    secure: LocalCluster, tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = StateDirectory(tmp_path_factory.mktemp("other"))
    directory.create()
    other = LocalSecurity(directory, "other")
    other.prepare(["controller"])
    given = files(secure, token_file=directory.client_files["token_file"])
    with (
        pytest.raises(PenstockError) as raised,
        Admin(secure.bootstrap, **given) as admin,
    ):
        admin.describe_cluster()
    assert raised.value.code is ErrorCode.UNAUTHENTICATED


def test_transactions_work(secure: LocalCluster) -> None:
    with (
        Producer(secure.bootstrap, transactional_id="t", **files(secure)) as producer,
        producer.transaction() as tx,
    ):
        tx.send(TOPIC, b"in a transaction")


def nearly_over(issuing: LocalSecurity, left_s: int) -> str:
    """A token that a broker counts for `left_s` seconds more, though it expired before."""
    token = issuing.token("admin", 3600)
    claims = jwt.decode(token, options={"verify_signature": False})
    now_s = time.time_ns() // 1_000_000_000
    claims |= {"iat": now_s - 3600, "nbf": now_s - 3600, "exp": now_s - 60 + left_s}
    key = (issuing.folder / "issuer.key").read_bytes()
    headers = {"kid": jwt.get_unverified_header(token)["kid"]}
    return jwt.encode(claims, key, "ES256", headers=headers)


def rebalances(secure: LocalCluster) -> int:
    return secure.log_file(0).read_text().count('"group changed"')


def consume_into(consumer: Consumer, seen: set[bytes], stop: threading.Event) -> None:
    while not stop.is_set():
        for batch in consumer.poll(0.2):
            seen.update(value for value in batch.values() if value)


@contextmanager
def reading(consumer: Consumer) -> Iterator[set[bytes]]:
    """The values that the consumer has got, in the background."""
    seen: set[bytes] = set()
    stop = threading.Event()
    thread = threading.Thread(target=consume_into, args=(consumer, seen, stop))
    thread.start()
    try:
        yield seen
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize("over_grpc", [False, True], ids=["streams", "grpc"])
def test_a_group_that_renews_its_token_does_not_rebalance(
    secure: LocalCluster,
    issuing: LocalSecurity,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    over_grpc: bool,
) -> None:
    """Attack 12: the streams of the first token end long before this test does."""
    if over_grpc:
        monkeypatch.setattr(StreamPort, "open", no_stream)
    ends = stream_ends(monkeypatch)
    path = tmp_path / "admin.token"
    left_s = 20
    write_token(path, nearly_over(issuing, left_s))
    ends_s = time.monotonic() + left_s + 2
    given = files(secure, token_file=str(path))
    group = f"renewing-{over_grpc}"
    with (
        Producer(secure.bootstrap, **given) as producer,
        Consumer(secure.bootstrap, group_id=group, auto_offset_reset="earliest", **given) as one,
    ):
        one.subscribe([TOPIC])
        with reading(one) as seen:
            producer.send(TOPIC, b"first").result(30)
            wait_until(lambda: b"first" in seen, what="the group has its partitions")
            before = rebalances(secure)
            write_token(path, issuing.token("admin", ADMIN_TOKEN_S))
            sent = 0
            while time.monotonic() < ends_s or sent < 3:
                sent += 1
                value = b"%s %d" % (group.encode(), sent)
                producer.send(TOPIC, value).result(30)
                wait_until(partial(seen.__contains__, value), what="it is consumed")
            assert rebalances(secure) == before
            assert ends == [StreamEnded(None, on_purpose=True)]


def stream_ends(monkeypatch: pytest.MonkeyPatch) -> list[StreamEnded]:
    """How the streams of this process's members end from now on."""
    found: list[StreamEnded] = []
    inner = Membership.handle

    def handle(self: Membership, event: Event, now_ms: int) -> Ready:
        if isinstance(event, StreamEnded):
            found.append(event)
        return inner(self, event, now_ms)

    monkeypatch.setattr(Membership, "handle", handle)
    return found


async def no_stream(*_: object) -> None:
    """Everything goes over gRPC."""


def test_a_stream_whose_token_ends_is_ended(
    secure: LocalCluster, issuing: LocalSecurity, tmp_path: Path
) -> None:
    """Attack 12, without a newer token: nothing gets through any more, and the error says why."""
    path = tmp_path / "admin.token"
    write_token(path, nearly_over(issuing, 15))
    given = files(secure, token_file=str(path))
    with Producer(secure.bootstrap, delivery_timeout_ms=2_000, **given) as producer:

        def let_in() -> bool:
            with suppress(PenstockError):  # a machine that stood still for two seconds
                producer.send(TOPIC, b"before").result(30)
                return True
            return False

        wait_until(let_in, what="the stream is there")

        def refused() -> bool:
            """Because of the token; a call that the machine held up may end otherwise, too."""
            try:
                producer.send(TOPIC, b"after").result(30)
            except PenstockError as error:
                return "expired" in error.message
            return False

        wait_until(refused, what="the stream ends, and the error says why")

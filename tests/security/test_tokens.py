"""Attacks 8 to 11: tokens that do not belong here, forged ones, and floods of them."""

import asyncio
import hashlib
import hmac
import json
import socket
import threading
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from support.clocks import StandingClock
from support.tokens import (
    AUDIENCE,
    CountingExecutor,
    Issuer,
    now_s,
    without_signature,
    write_issuers,
)
from support.waiting import wait_until_async

from penstock.errors import ClusterError, ErrorCode
from penstock_broker.serving.callers import Role
from penstock_broker.serving.tokens import login as login_module
from penstock_broker.serving.tokens.checking import TOKEN_BYTES_MAX, verified
from penstock_broker.serving.tokens.file import IssuersFile
from penstock_broker.serving.tokens.issuers import Issuers, parse_issuers
from penstock_broker.serving.tokens.login import (
    FAILURES_BURST,
    WAITING_MAX,
    WAITING_PER_HOST_MAX,
    TokenLogin,
)

OURS = Issuer()
RSA = Issuer("https://rsa.example", algorithm="RS256")
PEOPLE = Issuer(
    "https://login.example", "flights", kind="oidc", usernameClaim="email", groupsClaim="teams"
)
HOST = "10.0.0.7"


def known(*issuers: Issuer) -> Issuers:
    return parse_issuers(json.dumps({"issuers": [each.entry for each in issuers]}).encode())


BELIEVED = known(OURS, RSA, PEOPLE)


def refused(token: str, issuers: Issuers = BELIEVED) -> ClusterError:
    with pytest.raises(ClusterError) as raised:
        verified(token, issuers, now_s())
    assert token not in raised.value.message
    assert token.split(".")[1] not in raised.value.message
    return raised.value


def b64(document: object) -> str:
    return urlsafe_b64encode(json.dumps(document).encode()).rstrip(b"=").decode()


# ------------------------------------------------------------ who they are


@pytest.mark.parametrize("issuer", [OURS, RSA], ids=["ES256", "RS256"])
def test_a_token_of_the_issuer_names_its_service_account(issuer: Issuer) -> None:
    claims = issuer.claims("etl/spark")
    found = verified(issuer.sign(claims), BELIEVED, now_s())
    assert found.principal == "serviceaccount:etl/spark"
    assert found.groups == ()
    assert found.pod == ""
    assert found.expires_s == claims["exp"]


def test_a_token_bound_to_a_pod_names_it() -> None:
    private: dict[str, Any] = {
        "namespace": "etl",
        "serviceaccount": {"name": "spark", "uid": "1"},
        "pod": {"name": "spark-0", "uid": "2"},
    }
    token = OURS.sign({**OURS.claims(), "kubernetes.io": private})
    assert verified(token, BELIEVED, now_s()).pod == "spark-0"


def test_a_persons_token_names_user_and_groups() -> None:
    token = PEOPLE.token(email="ada@example.org", teams=["data", "ops"])
    found = verified(token, BELIEVED, now_s())
    assert found.principal == "oidc:https://login.example/ada@example.org"
    assert found.groups == (
        "oidc-group:https://login.example/data",
        "oidc-group:https://login.example/ops",
    )


@pytest.mark.parametrize("seconds", [-59, 59])
def test_clocks_may_differ_by_a_minute(seconds: int) -> None:
    now = int(now_s())
    token = OURS.token(exp=now + seconds, nbf=now + min(seconds, 50))
    assert verified(token, BELIEVED, float(now)).principal


# ------------------------------------------------------------ attack 8: of somebody else


def test_a_token_for_another_cluster_is_refused() -> None:
    error = refused(OURS.token(aud=["penstock.etl.test"]))
    assert error.code is ErrorCode.UNAUTHENTICATED
    assert "penstock.etl.test" in error.message
    assert AUDIENCE in error.message


@pytest.mark.parametrize(
    "audience",
    [None, "", [], ["https://kubernetes.default.svc"], f"{AUDIENCE}.ca", {AUDIENCE: 1}, [None]],
)
def test_a_token_without_this_clusters_audience_is_refused(audience: Any) -> None:
    """Among them the default token of a pod, which is for the API server."""
    assert refused(OURS.token(aud=audience)).code is ErrorCode.UNAUTHENTICATED


def test_a_token_of_another_issuer_is_refused() -> None:
    stranger = Issuer("https://elsewhere.example")
    error = refused(stranger.token())
    assert error.code is ErrorCode.UNAUTHENTICATED
    assert "https://elsewhere.example" in error.message


def test_an_issuer_cannot_speak_for_another() -> None:
    """Same names, same key id, another key; and a believed issuer's key under another's name."""
    assert "has not signed it" in refused(Issuer().token()).message
    assert "has not signed it" in refused(PEOPLE.token(iss=OURS.issuer)).message


def test_a_person_cannot_be_a_service_account() -> None:
    token = PEOPLE.token(email="serviceaccount:etl/spark")
    assert verified(token, BELIEVED, now_s()).principal.startswith("oidc:https://login.example/")


@pytest.mark.parametrize(
    "changes",
    [
        {"sub": "system:serviceaccount:etl:admin"},
        {"sub": None},
        {"kubernetes.io": None},
        {"kubernetes.io": "etl"},
        {"kubernetes.io": {"namespace": "etl"}},
        {"kubernetes.io": {"namespace": "etl", "serviceaccount": {"name": "a/b"}}},
        {"kubernetes.io": {"namespace": "etl", "serviceaccount": {"name": ["spark"]}}},
        {
            "kubernetes.io": {
                "namespace": "etl",
                "serviceaccount": {"name": "spark"},
                "pod": {"name": ""},
            }
        },
    ],
)
def test_claims_that_do_not_fit_together_are_refused(changes: dict[str, Any]) -> None:
    assert refused(OURS.token(**changes)).code is ErrorCode.UNAUTHENTICATED


@pytest.mark.parametrize(
    "changes",
    [
        {"email": None},
        {"email": ""},
        {"email": "ada\n"},
        {"email": "x" * 300},
        {"email": ["ada"]},
        {"email": "ada", "teams": [""]},
        {"email": "ada", "teams": [1]},
        {"email": "ada", "teams": ["t"] * 300},
    ],
)
def test_names_that_are_none_are_refused(changes: dict[str, Any]) -> None:
    assert refused(PEOPLE.token(**changes)).code is ErrorCode.UNAUTHENTICATED


# ------------------------------------------------------------ attack 9: forged


def test_a_token_without_a_signature_is_refused() -> None:
    for algorithm in ("none", "None", "NONE", ""):
        forged = without_signature(OURS.token(), alg=algorithm, kid=OURS.key_id)
        assert refused(forged).code is ErrorCode.UNAUTHENTICATED
    assert refused(OURS.token().rpartition(".")[0] + ".").code is ErrorCode.UNAUTHENTICATED


@pytest.mark.parametrize("issuer", [OURS, RSA], ids=["ES256", "RS256"])
def test_the_public_key_is_no_secret_to_sign_with(issuer: Issuer) -> None:
    unsigned = f"{b64({'alg': 'HS256', 'kid': issuer.key_id})}.{b64(issuer.claims())}"
    digest = hmac.new(issuer.public_pem, unsigned.encode(), hashlib.sha256).digest()
    error = refused(f"{unsigned}.{urlsafe_b64encode(digest).rstrip(b'=').decode()}")
    assert error.code is ErrorCode.UNAUTHENTICATED
    assert "only" in error.message


def test_a_key_of_ones_own_in_the_token_does_not_count() -> None:
    thief = Issuer()
    for header in ({"jwk": thief.jwk}, {"jku": "https://evil.example"}, {"crit": ["b64"]}):
        assert refused(thief.token(headers=header)).code is ErrorCode.UNAUTHENTICATED


@pytest.mark.parametrize("key_id", ["two", "", None, 7, "../../etc/passwd"])
def test_another_key_id_is_refused(key_id: Any) -> None:
    head, payload, signature = OURS.token().split(".")
    del head
    forged = f"{b64({'alg': 'ES256', 'kid': key_id})}.{payload}.{signature}"
    assert refused(forged).code is ErrorCode.UNAUTHENTICATED


def test_changed_claims_are_refused() -> None:
    head, _, signature = OURS.token().split(".")
    forged = f"{head}.{b64(OURS.claims('etl/admin'))}.{signature}"
    assert "has not signed it" in refused(forged).message


def test_an_expired_token_says_so() -> None:
    error = refused(OURS.token(exp=int(now_s()) - 61))
    assert error.code is ErrorCode.CREDENTIALS_EXPIRED
    assert error.retriable


@pytest.mark.parametrize(
    "times",
    [
        {"nbf": 4_000_000_000},
        {"exp": None},
        {"exp": "tomorrow"},
        {"exp": True},
        {"exp": float("inf")},
        {"exp": float("nan")},
        {"nbf": float("nan")},
        {"exp": [4_000_000_000]},
    ],
)
def test_times_that_are_none_are_refused(times: dict[str, Any]) -> None:
    assert refused(OURS.token(**times)).code is ErrorCode.UNAUTHENTICATED


@pytest.mark.parametrize(
    "text",
    [
        "x",
        "a.b",
        "a.b.c",
        "a.b.c.d",
        "ä.b.c",
        f"{b64([])}.{b64({})}.AAAA",
        f"{b64({'alg': 'ES256'})}.{b64([])}.AAAA",
        f"{b64({'alg': 'ES256'})}.{urlsafe_b64encode(b'[' * 3000).decode().rstrip('=')}.AAAA",
        f"{b64({'alg': 'ES256'})}.{urlsafe_b64encode(b'9' * 4000).decode().rstrip('=')}.AAAA",
    ],
)
def test_garbage_is_refused(text: str) -> None:
    with pytest.raises(ClusterError) as raised:
        verified(text, BELIEVED, now_s())
    assert raised.value.code is ErrorCode.UNAUTHENTICATED


def test_a_long_token_is_refused_unread() -> None:
    error = refused(OURS.token(more="x" * TOKEN_BYTES_MAX))
    assert str(TOKEN_BYTES_MAX) in error.message


# ------------------------------------------------------------ many tokens, over time


@pytest.fixture
def executor() -> Iterator[CountingExecutor]:
    with CountingExecutor() as one:
        yield one


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_issuers(tmp_path / "issuers.json", OURS)


async def no_pause(_: float) -> None:
    """Nothing is held back."""


async def code_of(login: TokenLogin, token: str, host: str = HOST) -> ErrorCode:
    with pytest.raises(ClusterError) as raised:
        await login.of_token(token, host)
    return raised.value.code


async def test_a_token_is_checked_once(file: Path, executor: CountingExecutor) -> None:
    login = TokenLogin(IssuersFile(file), executor)
    token = OURS.token()
    async with asyncio.TaskGroup() as tasks:
        asked = [tasks.create_task(login.of_token(token, HOST)) for _ in range(50)]
    callers = {task.result() for task in asked}
    callers.add(await login.of_token(token, "10.0.0.8"))
    assert len(callers) == 1
    (caller,) = callers
    assert caller.role is Role.USER
    assert caller.principal == "serviceaccount:etl/spark"
    assert executor.given == 1


async def test_a_known_token_ends_when_it_expires(file: Path, executor: CountingExecutor) -> None:
    clock = [now_s()]
    login = TokenLogin(IssuersFile(file), executor, now_s=lambda: clock[0])
    token = OURS.token()
    caller = await login.of_token(token, HOST)
    assert caller.expires_s is not None
    clock[0] = caller.expires_s + 59
    await login.of_token(token, HOST)
    clock[0] = caller.expires_s + 61
    assert await code_of(login, token) is ErrorCode.CREDENTIALS_EXPIRED
    assert await code_of(login, token) is ErrorCode.CREDENTIALS_EXPIRED


async def test_a_missing_token_is_told_what_to_do(file: Path, executor: CountingExecutor) -> None:
    login = TokenLogin(IssuersFile(file), executor)
    assert await code_of(login, "") is ErrorCode.UNAUTHENTICATED
    assert executor.given == 0


async def test_a_failed_login_is_in_the_audit_log_without_the_token(
    file: Path, executor: CountingExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "penstock.audit")
    token = OURS.token(exp=int(now_s()) - 600)
    assert await code_of(TokenLogin(IssuersFile(file), executor), token) is (
        ErrorCode.CREDENTIALS_EXPIRED
    )
    (record,) = [one for one in caplog.records if one.name == "penstock.audit"]
    assert record.__dict__["fields"]["host"] == HOST
    assert token.split(".")[2] not in caplog.text + str(record.__dict__)


async def test_random_key_ids_fetch_nothing(
    file: Path, executor: CountingExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attack 10. Whoever has keys writes the file; brokers never ask for one."""
    connected: list[Any] = []
    monkeypatch.setattr(socket.socket, "connect", lambda *asked: connected.append(asked))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *asked, **_: connected.append(asked))
    issuers = IssuersFile(file)
    login = TokenLogin(issuers, executor)
    tokens = [OURS.token(headers={"kid": str(uuid4())}) for _ in range(300)]
    codes = {await code_of(login, token, f"10.0.0.{n}") for n, token in enumerate(tokens)}
    assert codes == {ErrorCode.UNAUTHENTICATED}
    assert not connected
    assert issuers.generation == 1


async def test_bad_tokens_of_one_host_stop_being_looked_at(
    file: Path, executor: CountingExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attack 11. Answers are held back, so that they come no faster than calls may be open."""
    monkeypatch.setattr(login_module, "monotonic", StandingClock())  # nothing is forgiven
    held_back: list[float] = []

    async def pause(seconds: float) -> None:
        held_back.append(seconds)

    login = TokenLogin(IssuersFile(file), executor, pause=pause)
    honest = OURS.token("etl/honest")
    await login.of_token(honest, HOST)
    head, payload, _ = OURS.token().split(".")
    codes = []
    for number in range(2_000):
        codes.append(await code_of(login, f"{head}.{payload}.{number:05}"))
        await login.of_token(honest, HOST)
    assert codes[0] is ErrorCode.UNAUTHENTICATED
    assert ErrorCode.THROTTLED in codes
    assert executor.given == 1 + FAILURES_BURST
    newcomer = await login.of_token(OURS.token("etl/other"), "10.0.0.8")
    assert newcomer.principal == "serviceaccount:etl/other"
    assert len(held_back) == 2_000 - FAILURES_BURST
    assert min(held_back) >= 1.0
    before = len(held_back)
    assert await code_of(login, "", "10.0.0.9") is ErrorCode.UNAUTHENTICATED
    assert len(held_back) == before  # of a host that has had few


class Call:
    """Of gRPC, from a connection."""

    def __init__(self, token: str, port: int) -> None:
        self._token, self._port = token, port

    def peer(self) -> str:
        return f"ipv4:{HOST}:{self._port}"

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return (("authorization", f"Bearer {self._token}"),)


async def test_who_is_in_renews_a_token_while_somebody_behind_the_same_address_floods(
    file: Path, executor: CountingExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(login_module, "monotonic", StandingClock())
    login = TokenLogin(IssuersFile(file), executor, pause=no_pause)
    first, second, third = (OURS.token("etl/honest", jti=str(number)) for number in range(3))
    await login.of_call(Call(first, 1))
    head, payload, _ = OURS.token().split(".")
    for number in range(FAILURES_BURST):
        await code_of(login, f"{head}.{payload}.{number:05}")
    with pytest.raises(ClusterError) as caught:
        await login.of_call(Call(second, 2))
    assert caught.value.code is ErrorCode.THROTTLED, "a connection that nobody knows"
    assert (await login.of_call(Call(second, 1))).principal == "serviceaccount:etl/honest"
    await login.of_call(Call(second, 2))
    for code in (ErrorCode.UNAUTHENTICATED, ErrorCode.THROTTLED):
        with pytest.raises(ClusterError) as caught:
            await login.of_call(Call(f"{head}.{payload}.{code.name}", 1))
        assert caught.value.code is code, "one bad token ends it"
    given = executor.given
    with pytest.raises(ClusterError):
        await login.of_call(Call(third, 1))
    assert executor.given == given
    await login.of_call(Call(third, 2))


async def test_connections_that_are_remembered_are_bounded(
    file: Path, executor: CountingExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(login_module, "PROVEN_MAX", 3)
    login = TokenLogin(IssuersFile(file), executor, pause=no_pause)
    token = OURS.token()
    for port in range(10):
        await login.of_call(Call(token, port))
    assert len(login._proven) == 3


async def test_a_bad_token_that_comes_again_is_not_checked_again(
    file: Path, executor: CountingExecutor
) -> None:
    login = TokenLogin(IssuersFile(file), executor, pause=no_pause)
    bad = Issuer().token()
    for _ in range(100):
        assert await code_of(login, bad) is ErrorCode.UNAUTHENTICATED
    assert executor.given == 1


async def test_what_waits_to_be_checked_is_bounded(file: Path, executor: CountingExecutor) -> None:
    """Attack 11, from many hosts: the thread is busy, and known tokens pass all the same."""
    login = TokenLogin(IssuersFile(file), executor, pause=no_pause)
    honest = OURS.token("etl/honest")
    await login.of_token(honest, HOST)
    gate = threading.Event()
    executor.submit(gate.wait, 60)
    given = executor.given
    of_one = [(f"a.b.{number}", HOST) for number in range(WAITING_PER_HOST_MAX + 10)]
    of_many = [(f"a.b.x{n}", f"10.1.{n // 250}.{n % 250}") for n in range(1_000)]
    async with asyncio.TaskGroup() as tasks:
        asked = [tasks.create_task(_outcome(login, *each)) for each in [*of_one, *of_many]]
        await wait_until_async(
            lambda: sum(task.done() for task in asked) == len(asked) - WAITING_MAX,
            what="all but those that may wait are refused",
        )
        assert executor.given - given == WAITING_MAX
        assert (await login.of_token(honest, HOST)).principal == "serviceaccount:etl/honest"
        gate.set()
    codes = [task.result() for task in asked]
    assert codes.count(ErrorCode.UNAUTHENTICATED) == WAITING_MAX
    assert codes[: WAITING_PER_HOST_MAX + 10].count(ErrorCode.THROTTLED) == 10
    assert codes.count(ErrorCode.THROTTLED) == len(codes) - WAITING_MAX


async def _outcome(login: TokenLogin, token: str, host: str) -> ErrorCode:
    try:
        await login.of_token(token, host)
    except ClusterError as error:
        return error.code
    raise AssertionError("a bad token got in")


async def test_a_caller_who_leaves_does_not_take_others_along(
    file: Path, executor: CountingExecutor
) -> None:
    login = TokenLogin(IssuersFile(file), executor)
    gate = threading.Event()
    executor.submit(gate.wait, 60)
    token = OURS.token()
    async with asyncio.TaskGroup() as tasks:
        first = tasks.create_task(login.of_token(token, HOST))
        second = tasks.create_task(login.of_token(token, HOST))
        await asyncio.sleep(0)  # polls nothing: a turn of the loop
        first.cancel()
        await asyncio.sleep(0)  # polls nothing: a turn of the loop
        gate.set()
    assert first.cancelled()
    assert second.result().principal == "serviceaccount:etl/spark"

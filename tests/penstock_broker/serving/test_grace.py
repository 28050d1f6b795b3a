"""Known tokens of ServiceAccounts count on while nobody can renew them: by a clock of the test."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.tokens import CountingExecutor, Issuer, now_s, write_issuers

from penstock.errors import ClusterError, ErrorCode
from penstock_broker.metrics import Metrics
from penstock_broker.serving.callers import LEEWAY_S, Caller, Role
from penstock_broker.serving.expiry import bounded_by_credentials
from penstock_broker.serving.tokens.file import IssuersFile
from penstock_broker.serving.tokens.grace import GRACE_S, RENEWAL_S, Grace, Outage, after
from penstock_broker.serving.tokens.login import TokenLogin

HOUR_S = 3600.0
ACCOUNTS = Issuer()
PEOPLE = Issuer("https://login.example", "flights", kind="oidc")


# ------------------------------------------------------------ the rule


def test_a_token_that_ends_during_an_outage_counts_for_twelve_hours_more() -> None:
    outage = Outage(began_s=0, heard_s=20 * HOUR_S)
    assert outage.counts_until(HOUR_S) == HOUR_S + GRACE_S


def test_a_token_that_had_ended_before_the_outage_has_no_grace() -> None:
    outage = Outage(began_s=HOUR_S, heard_s=2 * HOUR_S)
    assert outage.counts_until(HOUR_S - 1) == HOUR_S - 1 + LEEWAY_S


def test_twelve_hours_after_the_last_word_of_a_controller_nothing_has_grace() -> None:
    outage = Outage(began_s=0, heard_s=HOUR_S)
    assert outage.counts_until(10 * HOUR_S) == HOUR_S + GRACE_S
    assert outage.counts_until(20 * HOUR_S) == 20 * HOUR_S + LEEWAY_S


def test_after_the_outage_there_is_time_to_renew_and_no_more() -> None:
    outage = Outage(began_s=0, heard_s=2 * HOUR_S, over_s=2 * HOUR_S)
    assert outage.counts_until(HOUR_S) == 2 * HOUR_S + RENEWAL_S
    assert outage.counts_until(3 * HOUR_S) == 3 * HOUR_S + LEEWAY_S


def test_an_outage_lasts_until_a_controller_says_that_it_is_over() -> None:
    assert after(None, 0, now_s=100) is None
    first = after(None, 70, now_s=100)
    assert first == Outage(began_s=30, heard_s=100)
    again = after(first, 120, now_s=160)
    assert again == Outage(began_s=30, heard_s=160)
    over = after(again, 0, now_s=200)
    assert over == Outage(began_s=30, heard_s=160, over_s=200)
    assert after(over, 0, now_s=260) == over


def test_an_api_server_that_answers_for_a_moment_does_not_end_an_outage() -> None:
    over = Outage(began_s=30, heard_s=160, over_s=200)
    assert after(over, 10, now_s=240) == Outage(began_s=30, heard_s=240)
    later = over.over_s or 0
    assert after(over, 10, now_s=later + RENEWAL_S + 20) == Outage(
        began_s=later + RENEWAL_S + 10, heard_s=later + RENEWAL_S + 20
    )


def test_a_controller_that_was_cut_off_later_does_not_shorten_an_outage() -> None:
    first = Outage(began_s=30, heard_s=100)
    assert after(first, 10, now_s=160) == Outage(began_s=30, heard_s=160)


# ------------------------------------------------------------ logins


class Clock:
    def __init__(self) -> None:
        self.now_s = now_s()

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def grace(clock: Clock) -> Grace:
    return Grace(clock)


@pytest.fixture
def login(tmp_path: Path, clock: Clock, grace: Grace) -> Iterator[TokenLogin]:
    file = write_issuers(tmp_path / "issuers.json", ACCOUNTS, PEOPLE)
    with CountingExecutor() as executor:
        yield TokenLogin(IssuersFile(file), executor, now_s=clock, grace=grace)


async def outcome(login: TokenLogin, token: str) -> str:
    try:
        return (await login.of_token(token, "10.0.0.7")).principal
    except ClusterError as error:
        return error.code.name


async def test_known_clients_go_on_and_new_tokens_fail_closed(
    login: TokenLogin, clock: Clock, grace: Grace
) -> None:
    """Attack 25: the API server is away for two hours."""
    known, strange = ACCOUNTS.token("etl/known"), ACCOUNTS.token("etl/strange")
    person = PEOPLE.token(sub="ada")
    for token in (known, person):
        await login.of_token(token, "10.0.0.7")
    clock.now_s += 600
    grace.heard(60)
    clock.now_s += 2 * HOUR_S
    grace.heard(2 * HOUR_S + 60)
    assert await outcome(login, known) == "serviceaccount:etl/known"
    assert await outcome(login, strange) == ErrorCode.CREDENTIALS_EXPIRED.name
    assert await outcome(login, person) == ErrorCode.CREDENTIALS_EXPIRED.name
    grace.heard(0)
    clock.now_s += RENEWAL_S - 1
    assert await outcome(login, known) == "serviceaccount:etl/known"
    clock.now_s += 2
    assert await outcome(login, known) == ErrorCode.CREDENTIALS_EXPIRED.name


async def test_word_of_an_outage_may_come_after_the_tokens_end(
    login: TokenLogin, clock: Clock, grace: Grace
) -> None:
    token = ACCOUNTS.token()
    await login.of_token(token, "10.0.0.7")
    clock.now_s += HOUR_S + LEEWAY_S + 1
    assert await outcome(login, token) == ErrorCode.CREDENTIALS_EXPIRED.name
    grace.heard(120)
    assert await outcome(login, token) == "serviceaccount:etl/spark"


async def test_without_word_of_an_outage_nothing_counts_longer(
    login: TokenLogin, clock: Clock, grace: Grace
) -> None:
    token = ACCOUNTS.token()
    await login.of_token(token, "10.0.0.7")
    grace.heard(0)
    clock.now_s += HOUR_S + LEEWAY_S + 1
    assert await outcome(login, token) == ErrorCode.CREDENTIALS_EXPIRED.name


async def test_a_key_that_is_withdrawn_ends_the_grace(
    login: TokenLogin, clock: Clock, grace: Grace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock_broker.serving.tokens.file.LOOK_EVERY_S", 0.0)
    token = ACCOUNTS.token()
    await login.of_token(token, "10.0.0.7")
    clock.now_s += 2 * HOUR_S
    grace.heard(2 * HOUR_S)
    assert await outcome(login, token) == "serviceaccount:etl/spark"
    write_issuers(tmp_path / "issuers.json", Issuer(key_id="another"))
    assert await outcome(login, token) == ErrorCode.UNAUTHENTICATED.name


async def test_tokens_that_can_never_count_again_are_forgotten(
    login: TokenLogin, clock: Clock
) -> None:
    await login.of_token(ACCOUNTS.token("etl/old"), "10.0.0.7")
    clock.now_s += HOUR_S + GRACE_S
    now = int(clock.now_s)
    await login.of_token(ACCOUNTS.token("etl/new", nbf=now, exp=now + 600), "10.0.0.7")
    assert [known.caller.principal for known in login._known.values()] == ["serviceaccount:etl/new"]


# ------------------------------------------------------------ streams


async def streaming(who: Caller, clock: Clock) -> str:
    try:
        with bounded_by_credentials(who, clock):
            await asyncio.Event().wait()
    except ClusterError as error:
        return error.code.name
    return "done"


async def test_a_stream_lasts_as_long_as_its_token_counts(
    clock: Clock, grace: Grace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock_broker.serving.expiry.LOOK_EVERY_S", 0.01)
    expires_s = clock.now_s
    who = Caller(Role.USER, "serviceaccount:etl/spark", (), -1, expires_s, grace.counts_until)
    looked = asyncio.Event()

    def counts_until(end_s: float) -> float:
        looked.set()
        return grace.counts_until(end_s)

    known = Caller(Role.USER, who.principal, expires_s=expires_s, counts_until=counts_until)
    grace.heard(60)
    clock.now_s += LEEWAY_S + 1
    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        stream = tasks.create_task(streaming(known, clock))
        for _ in range(3):
            looked.clear()
            await looked.wait()
        assert not stream.done()
        grace.heard(0)
        clock.now_s += RENEWAL_S + 1
    assert stream.result() == ErrorCode.CREDENTIALS_EXPIRED.name


# ------------------------------------------------------------ what it says


def test_a_metric_and_the_log_say_that_grace_is_on(
    clock: Clock, grace: Grace, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    metrics = Metrics()
    metrics.observe_grace(lambda: grace.is_on)

    def metric() -> float | None:
        return metrics.registry.get_sample_value("penstock_token_grace")

    grace.heard(0)
    assert metric() == 0.0
    for _ in range(2):
        grace.heard(60)
        assert metric() == 1.0
    clock.now_s += GRACE_S + 1
    assert metric() == 0.0, "no controller has said anything for too long"
    grace.heard(60 + GRACE_S)
    grace.heard(0)
    assert metric() == 0.0
    assert [record.message.partition(":")[0] for record in caplog.records] == [
        "the API server is unavailable, and nobody can renew tokens of ServiceAccounts",
        "the API server is unavailable, and nobody can renew tokens of ServiceAccounts",
        "the API server is available again",
    ]

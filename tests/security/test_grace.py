"""Attack 25: the API server is away for two hours. Known clients go on, new tokens fail closed.

Position: whoever has a token that has ended. Attempt: log in while nobody can renew tokens.
Outcome: only a token that the broker knew before its end counts, for 12 h at most. Real: the API
server, its tokens and keys, a controller's port for brokers. Of the test: the clock of the broker.
"""

import argparse
import asyncio
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.apiserver import ApiServer
from support.enrolling import CLUSTER_ID, NAMES, pod_token
from support.processes import HOST, ReservedPort
from support.tokens import Issuer, now_s, write_issuers
from support.waiting import wait_until_async

from penstock.core.types import BrokerId
from penstock.errors import ClusterError, ErrorCode
from penstock.rpc.tls import Tls, TlsFiles
from penstock_broker.certificates import enrolment_client
from penstock_broker.certificates.authority import Authority, Pair
from penstock_broker.certificates.enrolment import controller_subject
from penstock_broker.certificates.enrolment_client import Enrolment, EnrolmentConfig
from penstock_broker.controller import enrolment_setup
from penstock_broker.controller.enrolment import EnrolmentService, serve_enrolment
from penstock_broker.controller.enrolment_issuers import IssuersInFile, PublishedIssuers
from penstock_broker.serving.tokens.file import IssuersFile
from penstock_broker.serving.tokens.grace import RENEWAL_S, Grace
from penstock_broker.serving.tokens.login import TokenLogin

HOUR_S = 3600.0


class Clock:
    """Of a process; every look at the API server is as late as it should be."""

    def __init__(self) -> None:
        self.now_s = now_s()

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as made:
        yield made


# ------------------------------------------------------------ a real API server


def account_token(server: ApiServer, namespace: str, name: str, audience: str) -> str:
    """As the kubelet mounts it: for an hour."""
    accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    server.request("POST", accounts, {"metadata": {"name": name}})
    asked = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"audiences": [audience]},
    }
    return str(server.request("POST", f"{accounts}/{name}/token", asked)["status"]["token"])


async def outcome(login: TokenLogin, token: str) -> str:
    try:
        return (await login.of_token(token, "10.0.0.7")).principal
    except ClusterError as error:
        return error.code.name


@pytest.mark.parametrize("what", ["the API server", "its database"])
async def test_known_clients_outlast_the_api_server(
    what: str,
    api_server: ApiServer,
    tmp_path: Path,
    executor: ThreadPoolExecutor,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, namespace = Clock(), api_server.namespace("grace")
    monkeypatch.setenv("KUBECONFIG", str(api_server.kubeconfig))
    monkeypatch.setattr(enrolment_setup, "PublishedIssuers", with_clock(clock))
    options = argparse.Namespace(
        enrol_issuers=None,
        metadata="kubernetes",
        cluster="flights",
        namespace=namespace,
        owner_uid="",
        owner_name="",
    )
    audience = f"penstock.{namespace}.flights"
    known = account_token(api_server, namespace, "known", audience)
    strange = account_token(api_server, namespace, "strange", audience)
    grace, file = Grace(clock), tmp_path / "issuers.json"
    with enrolment_setup._around(options, executor) as around:

        async def broker_asks() -> None:
            clock.now_s += 60
            file.write_bytes(await around.issuers.look_again())
            grace.heard(around.issuers.unavailable_s)

        await broker_asks()
        login = TokenLogin(IssuersFile(file), executor, now_s=clock, grace=grace)
        assert await outcome(login, known) == f"serviceaccount:{namespace}/known"
        with away(api_server, what):
            await broker_asks()
            assert grace.is_on
            clock.now_s += 2 * HOUR_S
            await broker_asks()
            assert await outcome(login, known) == f"serviceaccount:{namespace}/known"
            assert await outcome(login, strange) == ErrorCode.CREDENTIALS_EXPIRED.name

        async def grace_is_over() -> bool:
            await broker_asks()
            return not grace.is_on

        await wait_until_async(grace_is_over, what="the API server answers again")
        assert await outcome(login, known) == f"serviceaccount:{namespace}/known"
        clock.now_s += RENEWAL_S + 1
        assert await outcome(login, known) == ErrorCode.CREDENTIALS_EXPIRED.name


def with_clock(clock: Clock) -> Any:
    def made(fetch: Any, executor: Any, **settings: Any) -> PublishedIssuers:
        return PublishedIssuers(fetch, executor, clock, **settings)

    return made


def away(server: ApiServer, what: str) -> Any:
    return server.killed() if what == "the API server" else server.without_database()


# ------------------------------------------------------------ brokers ask controllers


class Said(IssuersInFile):
    """A controller that says for how long the API server has been unavailable to it."""

    unavailable_s = 0.0


@asynccontextmanager
async def controller(
    source: IssuersInFile, folder: Path, executor: ThreadPoolExecutor
) -> AsyncIterator[str]:
    """Its port for brokers, with a certificate of the CA in `folder`."""
    authority = Authority.load(
        Pair(*((folder / name).read_bytes() for name in ("ca.crt", "ca.key")))
    )
    mine = authority.issue(controller_subject(CLUSTER_ID, NAMES, [HOST]))
    pem = folder / "controller.pem"
    pem.write_bytes(mine.certificate + mine.key)
    service = EnrolmentService(
        lambda: authority, source, executor, cluster_id=CLUSTER_ID, names=NAMES, hosts=[HOST]
    )
    with ReservedPort() as port:
        tls = Tls(TlsFiles(folder / "ca.crt", pem, pem))
        server = await serve_enrolment(service, tls, port.address)
        try:
            yield port.address
        finally:
            await server.stop(None)


async def test_any_controller_that_reaches_the_api_server_ends_the_grace(
    tmp_path: Path, executor: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is cut off alone must not let tokens count on."""
    monkeypatch.setattr(enrolment_client, "_CALL_S", 120.0)  # both are there
    authority = Authority.new("flights")
    (tmp_path / "ca.crt").write_bytes(authority.certificate)
    (tmp_path / "ca.key").write_bytes(authority.pair.key)
    issuer = Issuer(audience=NAMES.audience)
    (tmp_path / "token").write_text(pod_token(issuer, 0))
    file = write_issuers(tmp_path / "issuers.json", issuer)
    one, other = Said(file), Said(file)
    async with controller(one, tmp_path, executor) as first:
        async with controller(other, tmp_path, executor) as second:
            enrolment = Enrolment(
                EnrolmentConfig(
                    broker_id=BrokerId(0),
                    folder=tmp_path / "tls",
                    controllers=(first, second),
                    token=tmp_path / "token",
                    trust=tmp_path / "ca.crt",
                )
            )
            await enrolment.ensure()
            assert await heard(enrolment) == 0
            one.unavailable_s = 70.0
            assert await heard(enrolment) == 0
            other.unavailable_s = 80.0
            assert await heard(enrolment) == 70.0
        assert await heard(enrolment) == 70.0
    with pytest.raises(ExceptionGroup) as silent:
        await heard(enrolment, wait_s=0.5)
    assert silent.group_contains(TimeoutError)


async def heard(enrolment: Enrolment, wait_s: float = 300.0) -> float:
    """What the broker hears next."""
    words: asyncio.Queue[float] = asyncio.Queue(10)
    async with asyncio.TaskGroup() as tasks:
        keeping = tasks.create_task(enrolment.keep(words.put_nowait))
        try:
            async with asyncio.timeout(wait_s):
                return await words.get()
        finally:
            keeping.cancel()

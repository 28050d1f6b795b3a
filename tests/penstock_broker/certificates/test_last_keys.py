"""Keys of an issuer that is down, while controllers come and go."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.enrolling import NAMES
from support.tokens import CountingExecutor, Issuer

from penstock.core.types import BrokerId
from penstock.errors import ClusterError
from penstock.proto.v1 import enrolment_pb2 as pb
from penstock_broker.certificates.enrolment_client import Enrolment, EnrolmentConfig
from penstock_broker.certificates.last_keys import with_last_keys
from penstock_broker.serving.tokens.file import LOOK_EVERY_S, IssuersFile
from penstock_broker.serving.tokens.login import TokenLogin

ACCOUNTS = Issuer(audience=NAMES.audience)
PEOPLE = Issuer("https://login.example", "flights", kind="oidc")
ADA = "oidc:https://login.example/ada"


def unknown(issuer: Issuer) -> dict[str, Any]:
    """Its entry at a controller that it has not answered."""
    return {**issuer.entry, "jwks": {"keys": []}}


def document(*entries: dict[str, Any]) -> bytes:
    return json.dumps({"issuers": entries}, sort_keys=True).encode()


class Broker:
    """Hears what the test has controllers say."""

    def __init__(self, path: Path, executor: CountingExecutor) -> None:
        nothing = path / "none"
        config = EnrolmentConfig(
            broker_id=BrokerId(0), folder=path, controllers=(), token=nothing, trust=nothing
        )
        self.enrolment = Enrolment(config)
        self.file = IssuersFile(self.enrolment.issuers)
        self.login = TokenLogin(self.file, executor)

    async def hears(self, *entries: dict[str, Any]) -> None:
        async def ask(*_: object) -> pb.ListTokenIssuersResponse:
            return pb.ListTokenIssuersResponse(issuers=document(*entries))

        asked: Any = self.enrolment
        asked._ask = ask
        await self.enrolment._fetch_issuers(refresh=False)
        self.file._looked_s = -LOOK_EVERY_S

    async def lets_in(self, token: str) -> str:
        """The principal, or the error's code."""
        try:
            return (await self.login.of_token(token, "10.0.0.7")).principal
        except ClusterError as error:
            return error.code.name


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with CountingExecutor() as executor:
        yield Broker(tmp_path, executor)


def of_ada(issuer: Issuer = PEOPLE, **changes: Any) -> str:
    return issuer.token(sub="ada", **changes)


async def test_a_controller_that_restarts_takes_no_keys_of_an_issuer_that_is_down(
    broker: Broker,
) -> None:
    known = of_ada()
    await broker.hears(ACCOUNTS.entry, PEOPLE.entry)
    assert await broker.lets_in(known) == ADA
    await broker.hears(ACCOUNTS.entry, unknown(PEOPLE))
    generation = broker.file.generation
    assert await broker.lets_in(known) == ADA
    assert await broker.lets_in(of_ada(jti="new")) == ADA
    assert broker.file.generation == generation, "nothing is forgotten"
    renewed = Issuer(ACCOUNTS.issuer, NAMES.audience, key_id="two")
    await broker.hears(renewed.entry, unknown(PEOPLE))
    assert await broker.lets_in(known) == ADA
    assert await broker.lets_in(renewed.token()) == "serviceaccount:etl/spark"


async def test_keys_that_are_withdrawn_are_out(broker: Broker) -> None:
    known = of_ada()
    await broker.hears(ACCOUNTS.entry, PEOPLE.entry)
    assert await broker.lets_in(known) == ADA
    other = Issuer(PEOPLE.issuer, PEOPLE.audience, kind="oidc", key_id="two")
    await broker.hears(ACCOUNTS.entry, other.entry)
    assert await broker.lets_in(of_ada(other)) == ADA
    assert await broker.lets_in(known) == "UNAUTHENTICATED"
    await broker.hears(ACCOUNTS.entry, unknown(PEOPLE))
    assert await broker.lets_in(of_ada(other)) == ADA
    assert await broker.lets_in(known) == "UNAUTHENTICATED"
    await broker.hears(ACCOUNTS.entry)
    assert await broker.lets_in(of_ada(other)) == "UNAUTHENTICATED"
    await broker.hears(ACCOUNTS.entry, unknown(PEOPLE))
    assert await broker.lets_in(of_ada(other)) == "AUTH_NOT_READY", "they are not found again"


def test_keys_stay_with_their_issuer_and_audience() -> None:
    before = document(ACCOUNTS.entry, PEOPLE.entry)
    elsewhere = Issuer("https://another.example", "flights", kind="oidc")
    for entry in (
        unknown(elsewhere),
        {**unknown(PEOPLE), "audience": "another"},
        unknown(ACCOUNTS),
        {**unknown(PEOPLE), "kind": "kubernetes"},
    ):
        assert with_last_keys(document(entry), before) == document(entry)
    claims = {**unknown(PEOPLE), "groupsClaim": "teams"}
    expected = {**PEOPLE.entry, "groupsClaim": "teams"}
    assert with_last_keys(document(claims), before) == document(expected)


@pytest.mark.parametrize("none", [b"", b"{", b"[]", b'{"issuers": [1]}', b'{"issuers": {}}'])
def test_what_is_no_document_passes_as_it_is(none: bytes) -> None:
    assert with_last_keys(none, document(PEOPLE.entry)) == none
    assert with_last_keys(document(unknown(PEOPLE)), none) == document(unknown(PEOPLE))

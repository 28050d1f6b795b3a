"""The issuers' file: what is accepted in it, and what happens while it changes or is broken."""

import json
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm
from support.tokens import CountingExecutor, Issuer, write_issuers

from penstock.errors import ClusterError, MisuseError
from penstock_broker.serving.tokens.file import LOOK_EVERY_S, IssuersFile
from penstock_broker.serving.tokens.issuers import parse_issuers
from penstock_broker.serving.tokens.login import TokenLogin

OURS = Issuer()
HOST = "10.0.0.7"


def parse(*entries: Any) -> Any:
    return parse_issuers(json.dumps({"issuers": list(entries)}).encode())


def with_key(**changes: Any) -> dict[str, Any]:
    return {**OURS.entry, "jwks": {"keys": [{**OURS.jwk, **changes}]}}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (b"", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"\xff", "not JSON"),
        (b"[]", '"issuers"'),
        (b'{"issuers": {}}', '"issuers"'),
        (b" " * 2_000_000, "2000000 bytes"),
    ],
)
def test_a_file_that_is_none_is_refused(text: bytes, told: str) -> None:
    with pytest.raises(MisuseError, match=told):
        parse_issuers(text)


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        ("https://x", "issuers\\[0\\] is not an object"),
        ({**OURS.entry, "kind": "any"}, "kind is 'any'; known are kubernetes, oidc"),
        ({**OURS.entry, "audience": ""}, "issuers\\[0\\].audience"),
        ({**OURS.entry, "issuer": 7}, "issuers\\[0\\].issuer"),
        ({**OURS.entry, "jwks": None}, "jwks must be an object"),
        ({**OURS.entry, "jwks": {"keys": [1]}}, "keys\\[0\\] is not an object"),
        ({**OURS.entry, "jwks": {"keys": [OURS.jwk, OURS.jwk]}}, "there twice"),
        ({**OURS.entry, "usernameClaim": ""}, "usernameClaim"),
        (with_key(x="AA"), "keys\\[0\\] is not a usable public key"),
        (with_key(kid=""), "kid"),
    ],
)
def test_what_is_wrong_is_named(entry: Any, told: str) -> None:
    with pytest.raises(MisuseError, match=told):
        parse(entry)


def test_keys_that_do_not_count_are_left_out() -> None:
    weak = json.loads(RSAAlgorithm.to_jwk(rsa.generate_private_key(65537, 1024).public_key()))
    for key in (
        {"kty": "oct", "k": "c2VjcmV0", "kid": "a"},
        {**weak, "kid": "b"},
        {**OURS.jwk, "use": "enc"},
        {**OURS.jwk, "alg": "ES512"},
        {**OURS.jwk, "crv": "P-521"},
        {**OURS.jwk, "kty": ["EC"]},
    ):
        assert parse({**OURS.entry, "jwks": {"keys": [key]}})[OURS.issuer].keys == {}


def test_issuers_whose_users_could_be_confused_are_refused() -> None:
    """oidc:https://a/b/c would be user b/c of one, and c of the other."""
    one = Issuer("https://login.example", kind="oidc")
    other = Issuer("https://login.example/b", kind="oidc")
    with pytest.raises(MisuseError, match="told apart"):
        parse(one.entry, other.entry)
    with pytest.raises(MisuseError, match="twice"):
        parse(one.entry, one.entry)
    assert len(parse(one.entry, Issuer("https://login.example2", kind="oidc").entry)) == 2


class Looking:
    """A login on a file that is looked at whenever the test says so."""

    def __init__(self, path: Path, executor: CountingExecutor) -> None:
        self.file = IssuersFile(path)
        self.login = TokenLogin(self.file, executor)

    async def enter(self, token: str) -> str:
        """The principal, or the error's code."""
        self.file._looked_s = -LOOK_EVERY_S
        try:
            return (await self.login.of_token(token, HOST)).principal
        except ClusterError as error:
            return error.code.name


@pytest.fixture
def looking(tmp_path: Path) -> Any:
    with CountingExecutor() as executor:
        yield Looking(tmp_path / "issuers.json", executor)


async def test_before_the_first_file_nobody_gets_in(looking: Looking, tmp_path: Path) -> None:
    path = tmp_path / "issuers.json"
    assert await looking.enter(OURS.token()) == "AUTH_NOT_READY"
    path.write_text("{")
    assert await looking.enter(OURS.token()) == "AUTH_NOT_READY"
    write_issuers(path, OURS)
    assert await looking.enter(OURS.token()) == "serviceaccount:etl/spark"


async def test_a_broken_file_leaves_the_former_one_in_force(
    looking: Looking, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_issuers(tmp_path / "issuers.json", OURS)
    assert await looking.enter(OURS.token()) == "serviceaccount:etl/spark"
    path.write_text('{"issuers": [')
    for _ in range(3):
        assert await looking.enter(OURS.token("etl/other")) == "serviceaccount:etl/other"
    path.unlink()
    assert await looking.enter(OURS.token("etl/third")) == "serviceaccount:etl/third"
    complaints = [each for each in caplog.messages if "cannot be read" in each]
    assert len(complaints) == 2  # one for each problem
    assert "the former ones stay" in complaints[0]


async def test_an_issuer_without_keys_is_not_ready(looking: Looking, tmp_path: Path) -> None:
    entry = {**OURS.entry, "jwks": {"keys": []}}
    (tmp_path / "issuers.json").write_text(json.dumps({"issuers": [entry]}))
    assert await looking.enter(OURS.token()) == "AUTH_NOT_READY"
    write_issuers(tmp_path / "issuers.json", OURS)
    assert await looking.enter(OURS.token()) == "serviceaccount:etl/spark"


async def test_a_key_that_is_gone_takes_its_tokens_along(looking: Looking, tmp_path: Path) -> None:
    """Also those that are known, and only those."""
    other = Issuer("https://other.example")
    old, others = OURS.token(), other.token("etl/other")
    write_issuers(tmp_path / "issuers.json", OURS, other)
    assert await looking.enter(old) == "serviceaccount:etl/spark"
    assert await looking.enter(others) == "serviceaccount:etl/other"
    renewed = Issuer(key_id="one, again")
    write_issuers(tmp_path / "issuers.json", renewed, other)
    assert await looking.enter(old) == "UNAUTHENTICATED"
    assert await looking.enter(others) == "serviceaccount:etl/other"
    assert await looking.enter(renewed.token("etl/new")) == "serviceaccount:etl/new"


async def test_another_audience_holds_for_known_tokens_too(
    looking: Looking, tmp_path: Path
) -> None:
    token = OURS.token()
    write_issuers(tmp_path / "issuers.json", OURS)
    assert await looking.enter(token) == "serviceaccount:etl/spark"
    entry = {**OURS.entry, "audience": "penstock.etl.elsewhere"}
    (tmp_path / "issuers.json").write_text(json.dumps({"issuers": [entry]}))
    assert await looking.enter(token) == "UNAUTHENTICATED"


async def test_a_refused_token_gets_in_once_its_key_is_known(
    looking: Looking, tmp_path: Path
) -> None:
    write_issuers(tmp_path / "issuers.json", Issuer(key_id="old"))
    token = OURS.token()
    assert await looking.enter(token) == "UNAUTHENTICATED"
    write_issuers(tmp_path / "issuers.json", OURS)
    assert await looking.enter(token) == "serviceaccount:etl/spark"

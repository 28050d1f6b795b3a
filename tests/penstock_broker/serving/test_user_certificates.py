"""The users' CA as a file, and until when a certificate counts."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.secure import Certificates
from support.user_certificates import Leaf, UserCertificates, replace, signed

from penstock.errors import ClusterError, ErrorCode
from penstock.rpc.tls import Tls
from penstock_broker.certificates.authority import Authority, valid_until
from penstock_broker.serving import user_certificates
from penstock_broker.serving.callers import LEEWAY_S, Role
from penstock_broker.serving.user_certificates import UserCertificates as Identifying
from penstock_broker.serving.user_certificates import UsersCa


@dataclass
class Scene:
    """A broker's files, the users' CA, and what the broker makes of it, with each look a fresh
    one."""

    certificates: Certificates
    users: UserCertificates
    tls: Tls
    ca: UsersCa

    def roots(self) -> bytes:
        self.tls.look_now()
        self.ca.look_now()
        return self.ca.roots

    def trusts_nobody(self) -> bool:
        known = self.users.authority.certificate, self.certificates.authority.certificate
        return not any(each in self.roots() for each in known)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    certificates = Certificates(tmp_path / "servers")
    users = UserCertificates(tmp_path / "users", certificates.authority)
    tls = certificates.broker(0).tls
    return Scene(certificates, users, tls, UsersCa(users.ca, tls))


def test_the_file_is_followed_and_while_it_is_missing_nobody_is_trusted(scene: Scene) -> None:
    assert scene.roots() == scene.users.authority.certificate
    scene.users.ca.unlink()
    assert scene.trusts_nobody()
    assert "cannot be read: No such file" in scene.ca.problem
    new = Authority.new("next")
    scene.users.trust(new)
    assert scene.roots() == new.certificate
    assert scene.ca.problem == ""


def test_what_cannot_be_used_leaves_the_former_ca(scene: Scene) -> None:
    former = scene.roots()
    for content, why in (
        (b"no certificate", "holds no PEM certificate"),
        (former + scene.certificates.authority.certificate, "the CA of the cluster's servers"),
    ):
        replace(scene.users.ca, content)
        assert scene.roots() == former
        assert why in scene.ca.problem


def test_what_cannot_be_used_from_the_start_lets_nobody_in(scene: Scene) -> None:
    scene.users.trust(scene.certificates.authority)
    scene.ca = UsersCa(scene.users.ca, scene.tls)
    assert scene.trusts_nobody()
    assert scene.ca.problem


def test_a_users_ca_that_servers_come_to_trust_counts_no_longer(scene: Scene) -> None:
    """The file is as it was: the cluster's CA has changed."""
    assert not scene.trusts_nobody()
    scene.certificates.broker(0)
    scene.certificates.trust(scene.certificates.authority, scene.users.authority)
    assert scene.trusts_nobody()
    assert "the CA of the cluster's servers" in scene.ca.problem
    scene.certificates.trust(scene.certificates.authority)
    assert scene.roots() == scene.users.authority.certificate


class Context:
    """A call with this certificate."""

    def __init__(self, pem: bytes) -> None:
        self._pem = pem

    def auth_context(self) -> dict[str, list[bytes]]:
        return {"x509_pem_cert": [self._pem]} if self._pem else {}

    def peer(self) -> str:
        return "ipv4:10.0.0.7:41234"


async def test_a_certificate_counts_until_it_ends_and_not_a_minute_longer(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 0.0
    monkeypatch.setattr(user_certificates, "wall_s", lambda: now_s)
    identifying: Any = Identifying()
    pem = signed(scene.users.authority, Leaf(["ada"])).certificate
    call = Context(pem)
    who = await identifying.identify(call)
    assert (who.role, who.principal, who.groups) == (Role.USER, "cert:ada", ())
    assert who.expires_s + LEEWAY_S == valid_until(pem).timestamp()
    now_s = who.expires_s + LEEWAY_S - 1
    assert await identifying.identify(call) == who
    now_s += 1
    with pytest.raises(ClusterError, match="cert:ada ended 0 s ago") as raised:
        await identifying.identify(call)
    assert raised.value.code is ErrorCode.CREDENTIALS_EXPIRED


async def test_so_many_certificates_are_remembered_and_all_are_known(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_certificates, "KNOWN_MAX", 2)
    identifying: Any = Identifying()
    calls = {
        name: Context(signed(scene.users.authority, Leaf([name])).certificate) for name in "abc"
    }
    for name in "abcabc":
        assert (await identifying.identify(calls[name])).principal == f"cert:{name}"
        assert len(identifying._known) <= 2


async def test_a_call_without_a_certificate_is_refused(scene: Scene) -> None:
    identifying: Any = Identifying()
    with pytest.raises(ClusterError, match="it cannot be read") as raised:
        await identifying.identify(Context(b""))
    assert raised.value.code is ErrorCode.UNAUTHENTICATED

"""Which user a certificate names, and which certificates name none."""

import pytest
from support.user_certificates import Leaf, signed

from penstock.errors import ClusterError, ErrorCode
from penstock_broker.certificates.authority import Authority, valid_until
from penstock_broker.certificates.users import CertifiedUser, user_of

USERS = Authority.new("users")


@pytest.mark.parametrize("name", ["ada", "ada@example.com", "Ada Lovelace", "ädä", "a" * 64])
def test_the_common_name_is_the_user(name: str) -> None:
    pem = signed(USERS, Leaf([name], ["https://example.com/ada"])).certificate
    assert user_of(pem) == CertifiedUser(f"cert:{name}", valid_until(pem).timestamp())


@pytest.mark.parametrize(
    ("leaf", "why"),
    [
        (Leaf([]), "has 0 common names"),
        (Leaf(["ada", "ada"]), "has 2 common names"),
        (Leaf(["root\nada"]), r"is 'root\\nada', of 8 characters; it must have 1 to 64, all print"),
        (Leaf(["root\0"]), "all printable"),
        (Leaf(["root\u202e"]), "all printable"),
        (Leaf(["r" * 65]), "of 65 characters"),
        (Leaf(["ada"], ["spiffe://penstock/c/broker/0"]), "names a server of a cluster"),
        (Leaf(["ada"], ["https://x", "SPIFFE://Penstock/any"]), "names a server of a cluster"),
    ],
)
def test_a_certificate_that_is_not_clearly_one_users_is_refused(leaf: Leaf, why: str) -> None:
    with pytest.raises(ClusterError, match=why) as raised:
        user_of(signed(USERS, leaf).certificate)
    assert raised.value.code is ErrorCode.UNAUTHENTICATED
    assert "one CN" in raised.value.message


@pytest.mark.parametrize("pem", [b"", b"x", b"-----BEGIN CERTIFICATE-----\nAAAA\n"])
def test_what_is_no_certificate_is_refused(pem: bytes) -> None:
    with pytest.raises(ClusterError, match="it cannot be read") as raised:
        user_of(pem)
    assert raised.value.code is ErrorCode.UNAUTHENTICATED

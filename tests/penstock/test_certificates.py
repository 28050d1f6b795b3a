"""Which CAs may sign for users: none that has to do with the cluster's servers."""

from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from penstock.certificates import check_users_authorities
from penstock.errors import ErrorCode, MisuseError
from penstock_broker.certificates.authority import Authority, Pair, Subject

CLUSTERS, USERS, OTHERS = (Authority.new(name) for name in ("clusters", "users", "others"))


def signed_by(issuer: Authority, key: ec.EllipticCurvePrivateKey, name: str) -> bytes:
    """The certificate of a CA below another."""
    signing = serialization.load_pem_private_key(issuer.pair.key, password=None)
    assert isinstance(signing, ec.EllipticCurvePrivateKey)
    made = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(x509.load_pem_x509_certificate(issuer.certificate).subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.now(UTC))
        .not_valid_after(datetime.now(UTC) + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(signing, hashes.SHA256())
    )
    return made.public_bytes(serialization.Encoding.PEM)


def key_of(authority: Authority) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_pem_private_key(authority.pair.key, password=None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return key


BELOW_CLUSTERS = signed_by(CLUSTERS, ec.generate_private_key(ec.SECP256R1()), "below")
CLUSTERS_BELOW_USERS = signed_by(USERS, key_of(OTHERS), "an intermediate")
RENEWED = signed_by(USERS, key_of(CLUSTERS), "the same key, another name")


def test_cas_that_have_nothing_to_do_with_servers_may_sign_for_users() -> None:
    leaf = CLUSTERS.issue(Subject(common_name="b", uri="spiffe://penstock/c/broker/1"))
    check_users_authorities(
        USERS.certificate + OTHERS.certificate, CLUSTERS.certificate + leaf.certificate
    )
    check_users_authorities(USERS.certificate, b"")


@pytest.mark.parametrize(
    ("users", "clusters", "why"),
    [
        (CLUSTERS.certificate, CLUSTERS.certificate, "is the CA of the cluster's servers"),
        (USERS.certificate + CLUSTERS.certificate, CLUSTERS.certificate, "is the CA of the cl"),
        (USERS.certificate, OTHERS.certificate + USERS.certificate, "is the CA of the cluster's"),
        (RENEWED, CLUSTERS.certificate, "is the CA of the cluster's"),
        (BELOW_CLUSTERS, CLUSTERS.certificate, "sign for each other"),
        (USERS.certificate, CLUSTERS_BELOW_USERS, "sign for each other"),
        (USERS.issue(Subject(common_name="ada")).certificate, b"", "is not a CA"),
        (b"", CLUSTERS.certificate, "holds no PEM certificate"),
        (USERS.certificate[:-40], CLUSTERS.certificate, "or a broken one"),
        (USERS.certificate * 200, CLUSTERS.certificate, "more than 65536 bytes"),
    ],
    ids=[
        "the same",
        "among others",
        "one of the trusted",
        "the same key",
        "signed by the cluster's",
        "signs for the cluster's",
        "a leaf",
        "nothing",
        "half",
        "endless",
    ],
)
def test_other_cas_may_not(users: bytes, clusters: bytes, why: str) -> None:
    with pytest.raises(MisuseError) as raised:
        check_users_authorities(users, clusters)
    assert raised.value.code is ErrorCode.INVALID_CONFIG
    assert why in raised.value.message


def test_a_servers_leaf_that_a_users_ca_has_signed_is_found() -> None:
    leaf: Pair = USERS.issue(Subject(common_name="b", uri="spiffe://penstock/c/broker/1"))
    with pytest.raises(MisuseError, match="sign for each other"):
        check_users_authorities(USERS.certificate, CLUSTERS.certificate + leaf.certificate)


def test_what_cannot_be_compared_with_the_clusters_ca_is_refused() -> None:
    with pytest.raises(MisuseError, match="own certificates cannot be read") as refused:
        check_users_authorities(USERS.certificate, b"-----BEGIN CERTIFICATE-----")
    assert refused.value.code is ErrorCode.INVALID_CONFIG

"""Who gets which certificate, and when one is replaced: decisions only."""

from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509

from penstock.core.types import BrokerId
from penstock.errors import ClusterError, ErrorCode
from penstock.kubernetes.names import ClusterNames
from penstock_broker.certificates.authority import Authority
from penstock_broker.certificates.enrolment import (
    PodToken,
    State,
    broker_of_pod,
    broker_subject,
    controller_subject,
    is_superseded,
    judge,
    renewal_of,
)
from penstock_broker.certificates.reports import fingerprints

NAMES = ClusterNames("flights", "air")
ACCOUNT = "serviceaccount:air/flights-broker"
NOW = datetime(2030, 1, 1, tzinfo=UTC)
AUTHORITY = Authority.new("flights", now=NOW)
SUBJECT = broker_subject("c-1", BrokerId(1), NAMES, ["flights.example.com"])
HOST = NAMES.broker_host(1)


def test_a_brokers_pod_is_that_broker() -> None:
    assert broker_of_pod(PodToken(ACCOUNT, "flights-broker-0"), NAMES) == 0
    assert broker_of_pod(PodToken(ACCOUNT, "flights-broker-12"), NAMES) == 12


@pytest.mark.parametrize(
    ("principal", "pod"),
    [
        (ACCOUNT, ""),
        (ACCOUNT, "flights-broker-"),
        (ACCOUNT, "flights-broker-01"),
        (ACCOUNT, "flights-broker-٣"),
        (ACCOUNT, "flights-broker-1\n"),
        (ACCOUNT, "flights-broker-9999999999"),
        (ACCOUNT, "xflights-broker-1"),
        (ACCOUNT, "trains-broker-1"),
        (ACCOUNT, "flights-controller-7d5f-x"),
        ("serviceaccount:air/flights-controller", "flights-broker-1"),
        ("serviceaccount:air/default", "flights-broker-1"),
        ("serviceaccount:other/flights-broker", "flights-broker-1"),
        ("oidc:https://login.example/air/flights-broker", "flights-broker-1"),
    ],
)
def test_nobody_else_is_a_broker(principal: str, pod: str) -> None:
    with pytest.raises(ClusterError) as caught:
        broker_of_pod(PodToken(principal, pod), NAMES)
    assert caught.value.code is ErrorCode.PERMISSION_DENIED


def test_names_in_certificates() -> None:
    assert SUBJECT.uri == "spiffe://penstock/c-1/broker/1"
    assert set(SUBJECT.hosts) == {
        "flights-broker-1.flights-brokers.air.svc",
        "flights-broker-1.flights-brokers.air",
        "flights-broker-1.flights-brokers.air.svc.cluster.local",
        "flights-bootstrap.air.svc",
        "flights-bootstrap.air",
        "flights-bootstrap.air.svc.cluster.local",
        "flights-bootstrap",
        "flights.example.com",
    }
    controller = controller_subject("c-1", NAMES, [])
    assert controller.uri == "spiffe://penstock/c-1/controller"
    assert "flights-controllers.air.svc" in controller.hosts
    assert not set(controller.hosts) & set(SUBJECT.hosts)


def test_the_longest_names_fit() -> None:
    names = ClusterNames("c" * 40, "n" * 63)
    pair = AUTHORITY.issue(broker_subject("i" * 64, BrokerId(2**31 - 1), names, []), now=NOW)
    x509.load_pem_x509_certificate(pair.certificate)


def pem(**changes: object) -> bytes:
    pair = AUTHORITY.issue(SUBJECT, now=NOW, days=30)
    return pair.certificate + pair.key


def verdict(content: bytes, at: datetime = NOW, broker_id: int = 1, host: str = HOST) -> State:
    return judge(content, AUTHORITY.certificate, BrokerId(broker_id), [host], at).state


def test_a_certificate_serves_for_two_thirds_of_its_life_and_is_then_renewed() -> None:
    content = pem()
    due = renewal_of(content)
    assert timedelta(days=19) < due - NOW < timedelta(days=21)
    assert verdict(content) is State.GOOD
    assert verdict(content, due - timedelta(seconds=1)) is State.GOOD
    assert verdict(content, due) is State.AGING
    assert verdict(content, NOW + timedelta(days=29)) is State.AGING
    assert verdict(content, NOW + timedelta(days=30)) is State.UNUSABLE
    assert verdict(content, NOW - timedelta(minutes=6)) is State.UNUSABLE


def test_what_is_of_somebody_else_is_replaced() -> None:
    content = pem()
    assert verdict(content, broker_id=2) is State.UNUSABLE
    assert verdict(content, host="another.example.com") is State.UNUSABLE
    assert verdict(content, host="flights.example.com") is State.GOOD
    other = Authority.new("flights", now=NOW)
    strange = other.issue(SUBJECT, now=NOW)
    assert verdict(strange.certificate + strange.key) is State.UNUSABLE
    mixed = AUTHORITY.issue(SUBJECT, now=NOW)
    assert verdict(mixed.certificate + strange.key) is State.UNUSABLE
    assert verdict(mixed.certificate) is State.UNUSABLE
    assert verdict(b"") is State.UNUSABLE
    controller = AUTHORITY.issue(controller_subject("c-1", NAMES, [HOST]), now=NOW)
    assert verdict(controller.certificate + controller.key) is State.UNUSABLE


def test_while_two_cas_are_trusted_both_certificates_serve() -> None:
    other = Authority.new("flights", now=NOW)
    both = other.certificate + AUTHORITY.certificate
    assert judge(pem(), both, BrokerId(1), [HOST], NOW).state is State.GOOD


def test_a_certificate_is_superseded_by_the_newest_trusted_ca_only() -> None:
    other = Authority.new("flights", now=NOW)
    pem = AUTHORITY.issue(broker_subject("c-1", BrokerId(0), NAMES, ()), now=NOW).certificate
    old, new = (fingerprints(each.certificate)[0] for each in (AUTHORITY, other))
    both = AUTHORITY.certificate + other.certificate
    assert is_superseded(pem, both, new)
    assert not is_superseded(pem, both, old), "a controller lags"
    assert not is_superseded(pem, AUTHORITY.certificate, new), "the broker's own trust lags"
    assert not is_superseded(pem, other.certificate + AUTHORITY.certificate, old)

"""A broker without a certificate gets one from a controller, and serves with it: processes."""

import json
import stat
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from cryptography import x509
from support.channels import patient_channel
from support.enrolling import CLUSTER_ID, NAMES, EnrolmentScene, pod_token
from support.tokens import Issuer
from support.waiting import wait_until

from penstock.errors import ErrorCode
from penstock.proto.v1 import broker_pb2
from penstock.proto.v1.broker_pb2_grpc import BrokerServiceStub
from penstock.rpc.errors import error_from_rpc


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[EnrolmentScene]:
    with EnrolmentScene(tmp_path) as made:
        yield made


def leaf(scene: EnrolmentScene) -> x509.Certificate:
    return x509.load_pem_x509_certificates(scene.pem.read_bytes())[0]


def logged(path: Path, event: str) -> bool:
    return any(event in line for line in path.read_text().splitlines()) if path.exists() else False


def test_a_broker_gets_its_certificate_and_registers_with_it(scene: EnrolmentScene) -> None:
    scene.start()
    found = leaf(scene)
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    (uri,) = names.get_values_for_type(x509.UniformResourceIdentifier)
    assert uri == f"spiffe://penstock/{CLUSTER_ID}/broker/0"
    dns = names.get_values_for_type(x509.DNSName)
    assert {NAMES.broker_host(0), NAMES.bootstrap_host} <= set(dns)
    assert NAMES.broker_host(1) not in dns
    found.verify_directly_issued_by(x509.load_pem_x509_certificate(scene.authority.certificate))
    assert stat.S_IMODE(scene.pem.stat().st_mode) == 0o600
    assert stat.S_IMODE(scene.pem.parent.stat().st_mode) == 0o700
    issuers = scene.pem.with_name("token-issuers.json")
    wait_until(issuers.exists, what="the issuers are on the broker's disk")
    assert json.loads(issuers.read_bytes()) == {"issuers": [scene.issuer.entry]}


def test_a_broker_lets_in_who_shows_the_issuers_new_key(scene: EnrolmentScene) -> None:
    """It looks for keys every minute anyway: this one is let in long before."""
    scene.start()
    issuers = scene.pem.with_name("token-issuers.json")
    wait_until(issuers.exists, what="the issuers are on the broker's disk")
    rotated = Issuer(scene.issuer.issuer, NAMES.audience, key_id="two")
    both = [key for each in (scene.issuer, rotated) for key in each.entry["jwks"]["keys"]]
    entry = {**rotated.entry, "jwks": {"keys": both}}
    (scene.path / "issuers.json").write_text(json.dumps({"issuers": [entry]}))
    metadata = (("authorization", f"Bearer {rotated.token('etl/spark')}"),)
    codes = []

    def let_in() -> bool:
        with patient_channel(scene.broker_address, scene.tls()) as channel:
            try:
                BrokerServiceStub(channel).Metadata(
                    broker_pb2.MetadataRequest(), timeout=120, metadata=metadata
                )
            except grpc.RpcError as error:
                codes.append(error_from_rpc(error).code)
                return False
        return True

    wait_until(let_in, timeout_s=30, what="the new key is known")
    assert codes[0] is ErrorCode.AUTH_NOT_READY
    assert set(codes) <= {ErrorCode.AUTH_NOT_READY, ErrorCode.THROTTLED}, "clients try again"


def test_a_broker_waits_for_a_controller_and_says_so(scene: EnrolmentScene) -> None:
    scene.broker.start(wait=False)
    log = scene.path / "broker.log"
    wait_until(lambda: logged(log, "waiting for a controller"), what="it says that it waits")
    assert not scene.pem.exists()
    scene.controller.start()
    scene.broker.wait_serving()


def test_a_broker_with_a_certificate_needs_no_controller_to_start(scene: EnrolmentScene) -> None:
    scene.start()
    before = scene.pem.read_bytes()
    scene.broker.stop()
    scene.controller.stop()
    scene.broker.start(wait=False)
    log = scene.path / "broker.log"
    stay = "certificate and issuers stay as they are"
    wait_until(lambda: logged(log, stay), what="it goes on with what it has")
    scene.controller.start()
    scene.broker.wait_serving()
    assert scene.pem.read_bytes() == before


def test_a_certificate_of_another_ca_is_replaced(scene: EnrolmentScene) -> None:
    scene.start()
    before = leaf(scene)
    scene.broker.stop()
    scene.controller.stop()
    scene.new_authority()
    scene.start()
    assert leaf(scene).issuer == before.issuer
    leaf(scene).verify_directly_issued_by(
        x509.load_pem_x509_certificate(scene.authority.certificate)
    )


def test_the_cluster_keeps_its_id_when_another_is_given_to_new_ones(scene: EnrolmentScene) -> None:
    scene.start()
    scene.controller.stop()
    scene.controller.start("--new-cluster-id", "another")
    scene.pem.unlink()
    scene.broker.restart()
    names = leaf(scene).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    (uri,) = names.get_values_for_type(x509.UniformResourceIdentifier)
    assert uri == f"spiffe://penstock/{CLUSTER_ID}/broker/0"


@pytest.mark.parametrize("what", ["another pod", "a stranger's token"])
def test_a_broker_whose_token_is_refused_never_serves(scene: EnrolmentScene, what: str) -> None:
    issuer = scene.issuer if what == "another pod" else Issuer(audience=NAMES.audience)
    scene.write_token(pod_token(issuer, 1 if what == "another pod" else 0))
    scene.controller.start()
    scene.broker.start(wait=False)
    reason = "broker/1" if what == "another pod" else "the token is refused"
    wait_until(lambda: logged(scene.path / "broker.log", reason), what=f"it says why: {reason}")
    assert not scene.pem.exists()
    assert not scene.broker.is_serving()
    token = (scene.path / "token").read_text().strip()
    for log in ("broker.log", "controller.log"):
        assert token not in (scene.path / log).read_text()
        assert "PRIVATE KEY" not in (scene.path / log).read_text()

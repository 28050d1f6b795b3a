"""The port where brokers get certificates: only a broker's own pod gets one, and only its own.

Position: any pod that reaches the port, with labels of a broker if it likes. Attempt: get a
certificate, or have the API server asked for keys without end. Outcome: 90 or 91, and one request
in half a minute.
"""

import asyncio
import json
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from support.enrolling import NAMES, EnrolmentScene, pod_token
from support.tokens import Issuer, now_s, without_signature, write_issuers
from support.waiting import wait_until_async

from penstock.core.types import BrokerId
from penstock.errors import ClusterError, ErrorCode, PenstockError
from penstock.proto.v1 import controller_pb2
from penstock.proto.v1 import enrolment_pb2 as pb
from penstock.proto.v1.controller_pb2_grpc import ControllerServiceStub
from penstock.proto.v1.enrolment_pb2_grpc import EnrolmentServiceStub
from penstock.rpc.channel import open_aio_channel, open_channel
from penstock.rpc.errors import error_from_rpc
from penstock_broker.certificates import enrolment_client
from penstock_broker.certificates.authority import generate_csr
from penstock_broker.certificates.enrolment_client import (
    ControllerAnswer,
    Enrolment,
    EnrolmentConfig,
)
from penstock_broker.controller.enrolment_issuers import PublishedIssuers
from penstock_broker.serving.tokens.users import Users


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EnrolmentScene]:
    with EnrolmentScene(tmp_path_factory.mktemp("enrolment")) as made:
        made.controller.start()
        yield made


def enrol(scene: EnrolmentScene, token: str, csr: bytes | None = None) -> bytes:
    """The certificate. Raises PenstockError."""
    metadata = (("authorization", f"Bearer {token}"),) if token else ()
    with open_channel(scene.enrol_address, scene.tls()) as channel:
        request = pb.EnrolRequest(csr=generate_csr()[0] if csr is None else csr)
        try:
            answer = EnrolmentServiceStub(channel).Enrol(request, timeout=20, metadata=metadata)
        except grpc.RpcError as error:
            raise error_from_rpc(error) from error
        return answer.certificate_chain


def refusal(scene: EnrolmentScene, token: str) -> ErrorCode:
    with pytest.raises(PenstockError) as caught:
        enrol(scene, token)
    return caught.value.code


def test_a_brokers_pod_gets_a_certificate(scene: EnrolmentScene) -> None:
    assert b"BEGIN CERTIFICATE" in enrol(scene, pod_token(scene.issuer, 3))


def test_strangers_get_none(scene: EnrolmentScene) -> None:
    good = pod_token(scene.issuer, 0)
    later = int(now_s())
    for token in (
        "",
        "x",
        without_signature(good, alg="none"),
        pod_token(Issuer(audience=NAMES.audience), 0),  # the same names, another key
        pod_token(scene.issuer, 0, aud=[NAMES.audience]),  # a user's
        pod_token(scene.issuer, 0, aud=["penstock.air.trains.ca"]),
        pod_token(scene.issuer, 0, aud=["https://kubernetes.default.svc"]),
        pod_token(scene.issuer, 0, nbf=later + 600),
    ):
        assert refusal(scene, token) is ErrorCode.UNAUTHENTICATED
    expired = pod_token(scene.issuer, 0, exp=later - 600)
    assert refusal(scene, expired) is ErrorCode.CREDENTIALS_EXPIRED


def account(user: str, pod: str | None) -> dict[str, Any]:
    """Claims that the API server would sign for that account in that pod."""
    namespace, _, name = user.partition("/")
    private: dict[str, Any] = {"namespace": namespace, "serviceaccount": {"name": name, "uid": "1"}}
    if pod is not None:
        private["pod"] = {"name": pod, "uid": "2"}
    return {"sub": f"system:serviceaccount:{namespace}:{name}", "kubernetes.io": private}


@pytest.mark.parametrize(
    ("user", "pod"),
    [
        ("air/default", "flights-broker-0"),  # with a broker's name, and labels if it likes
        ("air/flights-controller", "flights-broker-0"),
        ("other/flights-broker", "flights-broker-0"),
        ("air/flights-broker", None),
        ("air/flights-broker", "evil"),
        ("air/flights-broker", "trains-broker-0"),
    ],
)
def test_other_pods_of_the_namespace_get_none(
    scene: EnrolmentScene, user: str, pod: str | None
) -> None:
    token = pod_token(scene.issuer, 0, **account(user, pod))
    assert refusal(scene, token) is ErrorCode.PERMISSION_DENIED


def test_what_a_csr_asks_for_does_not_count(scene: EnrolmentScene) -> None:
    wanted = [
        x509.UniformResourceIdentifier("spiffe://penstock/c-1/controller"),
        x509.DNSName("evil.example.com"),
    ]
    csr = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(x509.Name([]))
        .add_extension(x509.SubjectAlternativeName(wanted), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(ec.generate_private_key(ec.SECP256R1()), hashes.SHA256())
        .public_bytes(Encoding.PEM)
    )
    chain = enrol(scene, pod_token(scene.issuer, 2), csr)
    found = x509.load_pem_x509_certificate(chain).extensions
    names = found.get_extension_for_class(x509.SubjectAlternativeName).value
    uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    assert uris == ["spiffe://penstock/c-1/broker/2"]
    assert "evil.example.com" not in names.get_values_for_type(x509.DNSName)
    assert not found.get_extension_for_class(x509.BasicConstraints).value.ca


def test_a_csr_without_sense_is_refused(scene: EnrolmentScene) -> None:
    for csr in (b"", b"x", b"x" * 10_000):
        with pytest.raises(PenstockError) as caught:
            enrol(scene, pod_token(scene.issuer, 0), csr)
        assert caught.value.code is ErrorCode.INVALID_REQUEST


def test_nothing_else_is_served_there(scene: EnrolmentScene) -> None:
    with open_channel(scene.enrol_address, scene.tls()) as channel:
        request = controller_pb2.AlterIsrRequest()
        with pytest.raises(grpc.RpcError) as caught:
            ControllerServiceStub(channel).AlterIsr(request, timeout=20)
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
        with pytest.raises(grpc.RpcError) as caught:
            EnrolmentServiceStub(channel).ListTokenIssuers(pb.ListTokenIssuersRequest(), timeout=20)
        assert error_from_rpc(caught.value).code is ErrorCode.UNAUTHENTICATED
    with open_channel(scene.enrol_address) as plaintext, pytest.raises(grpc.RpcError) as caught:
        EnrolmentServiceStub(plaintext).Enrol(pb.EnrolRequest(), timeout=60)
    assert error_from_rpc(caught.value).code is ErrorCode.UNREACHABLE


async def test_unknown_key_ids_have_the_api_server_asked_once(tmp_path: Path) -> None:
    """10,000 of them, and a clock that shows when it may be asked again."""
    asked: list[float] = []
    clock = [1_000.0]
    document = json.dumps({"issuers": [Issuer(audience=NAMES.audience).entry]}).encode()

    def fetch() -> bytes:
        asked.append(clock[0])
        return document

    with ThreadPoolExecutor(1) as executor:
        source = PublishedIssuers(fetch, executor, now_s=lambda: clock[0])
        assert await source.document() == document
        async with asyncio.TaskGroup() as group:
            for _ in range(10_000):
                group.create_task(source.look_again())
        assert asked == [1_000.0]
        clock[0] += 29.9
        await source.look_again()
        assert asked == [1_000.0]
        clock[0] += 0.2
        for _ in range(1_000):
            await source.look_again()
        assert asked == [1_000.0, pytest.approx(1_030.1)]


async def test_while_the_api_server_is_away_the_last_keys_stay() -> None:
    clock = [0.0]
    answers: list[bytes | None] = [None, b"first", None, b"second"]

    def fetch() -> bytes:
        if (answer := answers.pop(0)) is None:
            raise ClusterError("away", ErrorCode.UNREACHABLE)
        return answer

    with ThreadPoolExecutor(1) as executor:
        source = PublishedIssuers(fetch, executor, now_s=lambda: clock[0])
        with pytest.raises(ClusterError) as caught:
            await source.document()
        assert caught.value.code is ErrorCode.AUTH_NOT_READY
        clock[0] += 2.0
        assert await source.document() == b"first"
        clock[0] += 30.0
        assert await source.look_again() == b"first"
        clock[0] += 30.0
        assert await source.look_again() == b"second"


async def test_a_caller_that_goes_away_does_not_take_the_answer_with_it() -> None:
    """Else anybody with a wrong token could keep newer keys from everybody."""
    asked, go_on = threading.Event(), threading.Event()

    def fetch() -> bytes:
        asked.set()
        assert go_on.wait(600)
        return b"newer"

    with ThreadPoolExecutor(1) as executor:
        source = PublishedIssuers(fetch, executor)
        async with asyncio.TaskGroup() as tasks:
            caller = tasks.create_task(source.look_again())
            await wait_until_async(asked.is_set, what="the API server is asked")
            caller.cancel()
        go_on.set()
        await wait_until_async(lambda: source.known == b"newer", what="the answer counts")


class Counted(Enrolment):
    """Counts how often it asks a controller for newer issuers."""

    refreshed = 0

    async def _fetch_issuers(self, *, refresh: bool) -> ControllerAnswer:
        answer = await super()._fetch_issuers(refresh=refresh)
        self.refreshed += refresh
        return answer


async def test_users_with_unknown_key_ids_have_a_controller_asked_once(
    scene: EnrolmentScene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attack 10 at a broker: 10,000 tokens from 10,000 hosts, and a real controller."""
    monkeypatch.setattr(enrolment_client, "_CALL_S", 120.0)  # it must answer the first time
    clock = [1_000.0]
    config = EnrolmentConfig(
        broker_id=BrokerId(0),
        folder=tmp_path,
        controllers=(scene.enrol_address,),
        token=scene.path / "token",
        trust=scene.path / "trust.crt",
    )
    enrolment = Counted(config, now_s=lambda: clock[0])
    await enrolment.ensure()
    users = Users(write_issuers(tmp_path / "issuers.json", scene.issuer), enrolment.look_again)
    good = scene.issuer.token("etl/spark")

    async def shown(n: int) -> ErrorCode:
        token = without_signature(good, alg="ES256", kid=f"{n}")
        with pytest.raises(ClusterError) as caught:
            await users.identify_token(token, f"10.0.{n // 200}.{n % 200}")
        return caught.value.code

    async def flood(first: int, end: int) -> set[ErrorCode]:
        codes = set()
        for begin in range(first, end, 200):
            async with asyncio.TaskGroup() as group:
                asked = [group.create_task(shown(n)) for n in range(begin, begin + 200)]
            codes |= {task.result() for task in asked}
        return codes

    async with asyncio.TaskGroup() as tasks:
        keeping = tasks.create_task(enrolment.keep())
        codes = await flood(0, 5_000)
        assert codes <= {ErrorCode.AUTH_NOT_READY, ErrorCode.UNAUTHENTICATED}
        await wait_until_async(lambda: enrolment.refreshed == 1, what="a controller is asked")
        clock[0] += 29.9
        assert await flood(5_000, 10_000) == {ErrorCode.UNAUTHENTICATED}
        assert enrolment.refreshed == 1
        clock[0] += 0.2
        assert await flood(10_000, 10_200) == {ErrorCode.AUTH_NOT_READY}
        await wait_until_async(lambda: enrolment.refreshed == 2, what="it is asked again")
        keeping.cancel()
    users.close()


async def test_random_key_ids_over_the_network_are_refused(scene: EnrolmentScene) -> None:
    async with open_aio_channel(scene.enrol_address, scene.tls()) as channel:
        stub: Any = EnrolmentServiceStub(channel)
        for _ in range(100):
            claims = scene.issuer.claims("air/flights-broker", aud=[NAMES.enrolment_audience])
            token = scene.issuer.sign(claims, {"kid": str(uuid.uuid4())})
            metadata = (("authorization", f"Bearer {token}"),)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.Enrol(pb.EnrolRequest(), timeout=20, metadata=metadata)
            assert error_from_rpc(caught.value).code is ErrorCode.UNAUTHENTICATED

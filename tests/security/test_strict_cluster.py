"""A Strict Cluster from the operator's objects, on a real API server: who gets in, and who not.

Position: a pod of the same namespace, with a broker's labels and a real token of its own account.
Attempt: get a broker's certificate, or log in. Outcome: 90 or 91. A pod without a certificate gets
no call through to servers' ports.
"""

import json
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen
from uuid import uuid4

import grpc
import pytest
from cryptography import x509
from support.apiserver import TIMEOUTS, ApiServer
from support.strict_pods import StrictPods
from support.tokens import Issuer
from support.waiting import wait_until

from penstock.cli.kube.login import login_to
from penstock.client import AsyncAdmin, ClientConfig
from penstock.errors import ErrorCode, MisuseError, PenstockError
from penstock.kubernetes.api import Api
from penstock.kubernetes.connect import connect
from penstock.kubernetes.names import ClusterNames
from penstock.proto.v1 import broker_pb2, journal_pb2
from penstock.proto.v1 import enrolment_pb2 as pb
from penstock.proto.v1.broker_pb2_grpc import BrokerServiceStub
from penstock.proto.v1.enrolment_pb2_grpc import EnrolmentServiceStub
from penstock.proto.v1.journal_pb2_grpc import JournalServiceStub
from penstock.rpc.channel import open_channel
from penstock.rpc.errors import error_from_rpc
from penstock.rpc.tls import Tls, TlsFiles
from penstock_broker.certificates.authority import generate_csr
from penstock_operator.names import ENROL_PORT, GRPC_PORT, INTERNAL_PORT, METRICS_PORT


@pytest.fixture(scope="module")
def pods(api_server: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StrictPods]:
    with StrictPods(api_server, tmp_path_factory.mktemp("strict")) as made:
        made.controller()
        made.broker()
        yield made


def trust(pods: StrictPods) -> Path:
    """What a client mounts."""
    found = pods.waited("/api/v1", "configmaps", pods.names.trust)
    path = pods.path / "client-ca.crt"
    path.write_text(found["data"]["ca.crt"])
    return path


def admin(pods: StrictPods, token: str) -> AsyncAdmin:
    file = pods.path / "client-token"
    file.write_text(token)
    config = ClientConfig(ca_file=trust(pods), token_file=file, request_timeout_ms=20_000)
    return AsyncAdmin(pods.address(GRPC_PORT), config)


def test_the_broker_has_a_certificate_that_fits_the_published_ca(pods: StrictPods) -> None:
    pem = (pods.path / "data" / "tls" / "server.pem").read_bytes()
    leaf = x509.load_pem_x509_certificates(pem)[0]
    leaf.verify_directly_issued_by(x509.load_pem_x509_certificate(trust(pods).read_bytes()))
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    (uri,) = names.get_values_for_type(x509.UniformResourceIdentifier)
    assert uri == f"spiffe://penstock/{pods.cluster['metadata']['uid']}/broker/0"


async def test_an_admins_token_logs_in(pods: StrictPods) -> None:
    async with admin(pods, pods.token(pods.names.admin, pods.names.audience)) as client:
        found = await client.describe_cluster()
    assert found.cluster_id == pods.cluster["metadata"]["uid"]


@pytest.mark.parametrize("audience", ["of another cluster", "of enrolment", "of the API server"])
async def test_tokens_for_others_log_nobody_in(pods: StrictPods, audience: str) -> None:
    asked = {
        "of another cluster": f"penstock.{pods.names.namespace}.trains",
        "of enrolment": pods.names.enrolment_audience,
        "of the API server": "https://kubernetes.default.svc",
    }[audience]
    with pytest.raises(PenstockError) as caught:
        async with admin(pods, pods.token(pods.names.admin, asked)) as client:
            await client.describe_cluster()
    assert caught.value.code is ErrorCode.UNAUTHENTICATED


def enrol(pods: StrictPods, token: str) -> ErrorCode | None:
    """Why there is no certificate; None: there is one."""
    request = pb.EnrolRequest(csr=generate_csr()[0])
    address = pods.address(ENROL_PORT, "controller")
    with open_channel(address, Tls(TlsFiles(trust(pods)))) as channel:
        try:
            metadata = (("authorization", f"Bearer {token}"),)
            EnrolmentServiceStub(channel).Enrol(request, timeout=20, metadata=metadata)
        except grpc.RpcError as error:
            return error_from_rpc(error).code
    return None


def test_a_pod_with_our_labels_gets_no_certificate(pods: StrictPods) -> None:
    names = pods.names
    accounts = f"/api/v1/namespaces/{names.namespace}/serviceaccounts"
    pods.server.request("POST", accounts, {"metadata": {"name": "evil"}})
    pods.make_pod("flights-broker-7", "evil")  # a broker's name and labels, another account
    pods.make_pod("evil", names.broker)  # a broker's account: the namespace's admin made it
    ca = names.enrolment_audience
    assert enrol(pods, pods.token("evil", ca, "flights-broker-7")) is ErrorCode.PERMISSION_DENIED
    assert enrol(pods, pods.token(names.broker, ca, "evil")) is ErrorCode.PERMISSION_DENIED
    assert enrol(pods, pods.token(names.broker, ca)) is ErrorCode.PERMISSION_DENIED
    assert enrol(pods, pods.token(names.admin, ca)) is ErrorCode.PERMISSION_DENIED
    login = pods.token(names.broker, names.audience, "flights-broker-0")
    assert enrol(pods, login) is ErrorCode.UNAUTHENTICATED
    assert enrol(pods, pods.token(names.broker, ca, "flights-broker-0")) is None


def test_without_a_certificate_no_call_reaches_a_server(pods: StrictPods) -> None:
    for tls in (Tls(TlsFiles(trust(pods))), None):
        with open_channel(pods.address(INTERNAL_PORT), tls) as channel:
            request = journal_pb2.PromiseJournalRequest(controller_epoch=2**62)
            with pytest.raises(grpc.RpcError) as caught:
                JournalServiceStub(channel).PromiseJournal(request, timeout=60)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert not list((pods.path / "data").glob("journal.json"))


def test_the_trust_that_somebody_changes_is_written_again(pods: StrictPods) -> None:
    path = f"/api/v1/namespaces/{pods.names.namespace}/configmaps/{pods.names.trust}"
    secret = pods.waited("/api/v1", "secrets", pods.names.authority)
    before = pods.waited("/api/v1", "configmaps", pods.names.trust)["data"]["ca.crt"]
    pods.server.request("DELETE", path)
    wait_until(
        lambda: pods.object("/api/v1", "configmaps", pods.names.trust),
        what="the controller publishes the CA again",
        timeout_s=90,
    )
    assert pods.waited("/api/v1", "configmaps", pods.names.trust)["data"]["ca.crt"] == before
    now = pods.waited("/api/v1", "secrets", pods.names.authority)
    assert now["metadata"]["resourceVersion"] == secret["metadata"]["resourceVersion"]


def user(pods: StrictPods, name: str, *accounts: str) -> Api:
    """Of somebody who may read ConfigMaps, and create tokens of these accounts."""
    rules = [
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"]},
        {
            "apiGroups": [""],
            "resources": ["serviceaccounts/token"],
            "resourceNames": list(accounts) or ["nobody"],
            "verbs": ["create"],
        },
    ]
    config = pods.server.service_account(pods.names.namespace, name, rules)
    return connect("tests", TIMEOUTS, kubeconfig=str(config))


async def test_people_log_in_as_the_account_whose_tokens_they_may_create(pods: StrictPods) -> None:
    names = ClusterNames(pods.names.cluster, pods.names.namespace)
    api = user(pods, "looks", names.viewer)
    login = login_to(api, pods.cluster, only_look=False)
    assert login is not None, "the Cluster is Strict"
    files = [Path(str(each)) for each in login.options.values()]
    assert all(each.parent.stat().st_mode & 0o077 == 0 for each in files)
    try:
        async with AsyncAdmin(pods.address(GRPC_PORT), ClientConfig(**login.options)) as client:
            assert (await client.describe_cluster()).brokers
            with pytest.raises(PenstockError) as caught:
                await client.create_topic("t", 1, 1)
        assert caught.value.code is ErrorCode.PERMISSION_DENIED
    finally:
        login.close()
        api.close()
    assert not any(each.exists() for each in files)


def test_who_may_create_no_token_is_told_what_is_missing(pods: StrictPods) -> None:
    api = user(pods, "stranger")
    with pytest.raises(MisuseError) as caught:
        login_to(api, pods.cluster, only_look=True)
    api.close()
    assert "of neither ServiceAccount flights-admin nor flights-viewer" in caught.value.message


async def test_brokers_hear_that_the_api_server_is_away_and_that_it_is_back(
    pods: StrictPods,
) -> None:
    """Attack 25. Tokens with an unknown key make all look sooner than every minute."""
    token = pods.token(pods.names.admin, pods.names.audience)
    strange = Issuer(json.loads(b64decode(token.split(".")[1] + "=="))["iss"], pods.names.audience)

    def heard(grace: str) -> bool:
        shown = (("authorization", f"Bearer {strange.token(str(uuid4()))}"),)
        request = broker_pb2.MetadataRequest()
        channel = open_channel(pods.address(GRPC_PORT), Tls(TlsFiles(root)))
        with channel, pytest.raises(grpc.RpcError):
            BrokerServiceStub(channel).Metadata(request, timeout=60, metadata=shown)
        with urlopen(f"http://{pods.address(METRICS_PORT)}/metrics", timeout=120) as answer:
            return f"penstock_token_grace {grace}" in answer.read().decode()

    root = trust(pods)
    assert heard("0.0")
    async with admin(pods, token) as client:
        pods.end_operator()
        with pods.server.killed():
            wait_until(lambda: heard("1.0"), what="grace is on", timeout_s=150)
            await client.list_topics()
        wait_until(lambda: heard("0.0"), what="grace is over", timeout_s=150)
        await client.list_topics()


def test_no_key_or_token_is_in_a_log(pods: StrictPods) -> None:
    logs = list(pods.path.glob("*.log"))
    assert len(logs) >= 3
    for log in logs:
        text = log.read_text(errors="replace")
        assert "PRIVATE KEY" not in text, log.name
        assert "eyJ" not in text, log.name  # how every token begins

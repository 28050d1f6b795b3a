"""A Cluster of mode Migrate from the operator's objects, on a real API server: two doors.

The broker is enrolled as in a Strict one. At 9092 nobody is asked, at 9095 a token counts.
"""

from collections.abc import Iterator
from typing import Any

import pytest
from support.apiserver import ApiServer
from support.strict_pods import StrictPods

from penstock.client import AsyncAdmin
from penstock.errors import ErrorCode, PenstockError
from penstock_operator.names import GRPC_PORT, SECURE_PORT


@pytest.fixture(scope="module")
def pods(api_server: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StrictPods]:
    with StrictPods(api_server, tmp_path_factory.mktemp("migrate"), "Migrate") as made:
        made.controller()
        made.broker()
        yield made


def shown(pods: StrictPods, account: str, audience: str) -> Any:
    """What a pod of this account shows."""
    trust = pods.path / "client-ca.crt"
    found = pods.waited("/api/v1", "configmaps", pods.names.trust)
    trust.write_text(found["data"]["ca.crt"])
    token = pods.path / "client-token"
    token.write_text(pods.token(account, audience))
    return {"ca_file": trust, "token_file": token}


async def test_nobody_is_asked_in_plaintext(pods: StrictPods) -> None:
    async with AsyncAdmin(pods.address(GRPC_PORT)) as nobody:
        assert (await nobody.describe_cluster()).cluster_id == pods.cluster["metadata"]["uid"]
        await nobody.create_topic("made-in-plaintext", 1, 1)


async def test_an_admins_token_logs_in_over_tls_and_sees_who_called_in_plaintext(
    pods: StrictPods,
) -> None:
    async with AsyncAdmin(pods.address(GRPC_PORT)) as nobody:
        await nobody.describe_cluster()
    options = shown(pods, pods.names.admin, pods.names.audience)
    async with AsyncAdmin(pods.address(SECURE_PORT), **options) as admin:
        (told,) = await admin.plaintext_callers()
    assert [one.host for one in told.callers] == ["127.0.0.1"]


async def test_other_tokens_log_nobody_in(pods: StrictPods) -> None:
    options = shown(pods, pods.names.admin, "https://kubernetes.default.svc")
    with pytest.raises(PenstockError) as caught:
        async with AsyncAdmin(pods.address(SECURE_PORT), **options) as client:
            await client.describe_cluster()
    assert caught.value.code is ErrorCode.UNAUTHENTICATED

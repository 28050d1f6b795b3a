"""A person in many groups of an issuer: brokers pass all of them on to the controller."""

from pathlib import Path
from typing import Any

import pytest
from support.channels import patient_aio_channel
from support.identified import believing, identified

from penstock.core.authorization import CLUSTER, AccessRole, Rule
from penstock.core.authorization.checks import PRINCIPAL_MAX_CHARS
from penstock.proto.v1 import access_pb2, admin_pb2
from penstock.proto.v1.admin_pb2_grpc import AdminServiceStub
from penstock_broker.serving.callers import Caller, Role, entered
from penstock_broker.serving.forwarding import on_behalf
from penstock_broker.serving.tokens.checking import GROUPS_MAX

__all__ = ["believing"]
pytestmark = pytest.mark.usefixtures("believed")
ISSUER = "https://login.microsoftonline.com/72f988bf-86f1-41af-91ab-2d7cd011db47/v2.0"


@pytest.mark.parametrize("issuer", [ISSUER, ISSUER.ljust(PRINCIPAL_MAX_CHARS - 50, "x")])
async def test_every_group_of_a_person_counts_at_the_controller(
    tmp_path: Path, issuer: str
) -> None:
    groups = tuple(
        f"oidc-group:{issuer}/{number:08x}-1111-4222-8333-444444444444"
        for number in range(GROUPS_MAX)
    )
    may_alter = admin_pb2.CheckAccessRequest(
        resource=access_pb2.AccessResource(cluster=True),
        operation=access_pb2.ACCESS_OPERATION_ALTER,
    )
    async with identified(tmp_path) as cluster:
        await cluster.put(CLUSTER, Rule(principals=(groups[-1],), role=AccessRole.ADMIN))
        entered(Caller(Role.USER, f"oidc:{issuer}/ada", groups))
        address = f"127.0.0.1:{cluster.controller.server.port}"
        async with patient_aio_channel(address) as channel:
            controller: Any = AdminServiceStub(channel)
            for _ in range(20):
                answer = await controller.CheckAccess(may_alter, metadata=on_behalf())
                assert answer.allowed

"""The admin's calls about quotas. The controller answers them."""

from collections.abc import Sequence

from penstock.client.admin.asking import Asking, checked
from penstock.client.cluster.connections import Connection
from penstock.core.quotas import QuotaRule
from penstock.proto.v1 import admin_pb2 as pb
from penstock.rpc.quotas import quotas_from_wire, quotas_to_wire


async def alter_quotas(
    asking: Asking,
    rules: Sequence[QuotaRule],
    expected: Sequence[QuotaRule] | None,
    *,
    validate_only: bool,
) -> None:
    """See `AsyncAdmin.alter_quotas`."""
    request = pb.AlterQuotasRequest(
        cluster_id=await asking.cluster_id(),
        rules=quotas_to_wire(rules),
        validate_only=validate_only,
        expected=None if expected is None else pb.Quotas(rules=quotas_to_wire(expected)),
    )
    await asking.change(lambda connection: connection.admin.AlterQuotas, request)


async def describe_quotas(asking: Asking) -> tuple[QuotaRule, ...]:
    """See `AsyncAdmin.describe_quotas`."""
    request = pb.DescribeQuotasRequest(cluster_id=await asking.cluster_id())

    async def attempt(connection: Connection, timeout_s: float) -> pb.DescribeQuotasResponse:
        answer = await connection.call(connection.admin.DescribeQuotas, request, timeout_s)
        return checked(answer)

    return quotas_from_wire((await asking.ask(attempt)).rules)

"""The admin's calls about who may do what. The controller answers them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from penstock.client.admin.asking import Asking, checked
from penstock.client.cluster.connections import Connection
from penstock.core.authorization import Operation, Resource, Rule
from penstock.proto.v1 import access_pb2 as pb_access
from penstock.proto.v1 import admin_pb2 as pb
from penstock.rpc.access import (
    operation_to_wire,
    resource_from_wire,
    resource_to_wire,
    rules_from_wire,
    rules_to_wire,
)


@dataclass(frozen=True, slots=True)
class AccessDecision:
    """Whether something is allowed.

    Attributes:
        principal: Who was asked about; "": the cluster asks nobody who they are, so that
            everybody may do everything.
        rule: The rule that allows it; None: nothing does, or a role that servers were started with.
        of: Whose rule it is: the resource itself, or the cluster.
    """

    principal: str
    allowed: bool
    rule: Rule | None = None
    of: Resource | None = None


async def alter_access(
    asking: Asking,
    resource: Resource,
    rules: Sequence[Rule],
    *,
    validate_only: bool,
    expected: Sequence[Rule] | None,
) -> None:
    """See `AsyncAdmin.alter_access`."""
    seen = None if expected is None else pb_access.ResourceAccess(rules=rules_to_wire(expected))
    request = pb.AlterAccessRequest(
        expected=seen,
        cluster_id=await asking.cluster_id(),
        resource=resource_to_wire(resource),
        rules=rules_to_wire(rules),
        validate_only=validate_only,
    )
    await asking.change(lambda connection: connection.admin.AlterAccess, request)


async def describe_access(
    asking: Asking, resources: Iterable[Resource] | None
) -> dict[Resource, tuple[Rule, ...]]:
    """See `AsyncAdmin.describe_access`."""
    wanted = None if resources is None else list(resources)
    if wanted == []:
        return {}
    request = pb.DescribeAccessRequest(
        cluster_id=await asking.cluster_id(),
        resources=[resource_to_wire(resource) for resource in wanted or ()],
    )

    async def attempt(connection: Connection, timeout_s: float) -> pb.DescribeAccessResponse:
        answer = await connection.call(connection.admin.DescribeAccess, request, timeout_s)
        return checked(answer)

    answer = await asking.ask(attempt)
    return {resource_from_wire(one.resource): rules_from_wire(one.rules) for one in answer.access}


async def check_access(
    asking: Asking, operation: Operation, resource: Resource, principal: str
) -> AccessDecision:
    """See `AsyncAdmin.check_access`."""
    request = pb.CheckAccessRequest(
        cluster_id=await asking.cluster_id(),
        principal=principal,
        resource=resource_to_wire(resource),
        operation=operation_to_wire(operation),
    )

    async def attempt(connection: Connection, timeout_s: float) -> pb.CheckAccessResponse:
        answer = await connection.call(connection.admin.CheckAccess, request, timeout_s)
        return checked(answer)

    answer = await asking.ask(attempt)
    has_rule = answer.HasField("rule")
    return AccessDecision(
        principal=answer.principal,
        allowed=answer.allowed,
        rule=rules_from_wire([answer.rule])[0] if has_rule else None,
        of=resource_from_wire(answer.resource) if has_rule else None,
    )

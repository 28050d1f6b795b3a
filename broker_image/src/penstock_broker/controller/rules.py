"""The rules of access as the controller has stored them, and questions about them.

The controller decides by these itself, about calls that brokers make for users, whose brokers may
know older rules.
"""

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

from penstock.core.authorization import CLUSTER, Operation, Resource, Rule, Rulebook
from penstock.core.authorization.checks import check_operation, check_principal
from penstock.core.authorization.rulebook import identities
from penstock.core.control.draft import Stored
from penstock.core.quotas import Limit
from penstock.core.topic import PARTITIONS_MAX
from penstock.proto.v1 import admin_pb2 as pb
from penstock.rpc.access import (
    access_to_wire,
    operation_from_wire,
    resource_from_wire,
    resource_to_wire,
    rule_to_wire,
)
from penstock_broker.controller.runtime import ControllerRuntime
from penstock_broker.serving.access import Access
from penstock_broker.serving.callers import Caller, Role
from penstock_broker.serving.quotas import Quotas


class StoredRules:
    """Follows the adopted state: each use is by the rules as of then."""

    def __init__(self, runtime: ControllerRuntime, rulebook: Rulebook | None = None) -> None:
        self._runtime = runtime
        self._rulebook = rulebook or Rulebook()
        self._access = Access(self._rulebook)
        self._seen: Stored | None = None
        self._quotas = Quotas()

    @property
    def rulebook(self) -> Rulebook:
        """Raises ClusterError(NOT_CONTROLLER)."""
        stored = self._runtime.machine.stored
        if stored is not self._seen:
            self._seen = stored
            access = stored.cluster.access
            self._rulebook.put_cluster(access.rules, access.groups)
            for topic in stored.topics.values():
                self._rulebook.put_topic(topic.name, topic.access)
            self._rulebook.keep_topics(stored.topics)
            self._quotas.put(stored.cluster.quotas.rules)
        return self._rulebook

    @property
    def access(self) -> Access:
        """Raises ClusterError(NOT_CONTROLLER)."""
        _ = self.rulebook
        return self._access

    def authorize(self, who: Caller, method: str, request: object) -> None:
        """As `Access.authorize`."""
        if who.role is Role.USER:
            self.access.authorize(who, method, request)

    def admit(self, who: Caller, method: str, request: object) -> None:  # noqa: ARG002 - `Door`
        """Counts mutations, and refuses them above the quota, before anything is decided."""
        if who.role is not Role.USER:
            return
        _ = self.rulebook
        if not self._quotas.active:
            return
        amount = self._mutations(request)
        if amount:
            self._quotas.check(who, Limit.MUTATIONS)
            self._quotas.take(who, Limit.MUTATIONS, amount)

    def _mutations(self, request: object) -> int:
        """As KIP-599 counts: partitions of topics; others are one. Quotas themselves are free."""
        topics = self._runtime.machine.stored.topics
        default = self._runtime.machine.config.default_partitions

        def known(name: str) -> int:
            return len(topics[name].partitions) if name in topics else 1

        def possible(partitions: int) -> int:
            """Of what is refused for its size, no debt of years stays."""
            return partitions if 1 <= partitions <= PARTITIONS_MAX else 1

        match request:
            case pb.CreateTopicsRequest(validate_only=False):
                return sum(
                    possible(len(t.assignment) or t.partitions or default) for t in request.topics
                )
            case pb.DeleteTopicsRequest(validate_only=False):
                return sum(known(t.topic) for t in request.topics)
            case pb.CreatePartitionsRequest(validate_only=False):
                return possible(request.partitions - known(request.topic))
            case pb.AlterConfigsRequest(validate_only=False):
                return 1
            case pb.AlterAccessRequest(validate_only=False):
                return 1
            case _:
                return 0

    def worked(self, who: Caller, seconds: float) -> None:
        """Nothing: brokers count the time of calls."""

    def streaming(self, _: Caller, /) -> AbstractContextManager[None]:
        """Nothing: users have no streams here."""
        return nullcontext()

    def finished(self, who: Caller, method: str, request: object, answer: object) -> None:
        """Nothing: the broker that the user has called writes the audit log."""


def describe_access(
    rules: Rulebook, request: pb.DescribeAccessRequest
) -> pb.DescribeAccessResponse:
    """Rules of what the request names, also if it has none; or of all that have some."""
    wanted = [resource_from_wire(resource) for resource in request.resources]
    own = dict(rules.own())
    found: Iterable[tuple[Resource, tuple[Rule, ...]]]
    if wanted:
        known = {**own, CLUSTER: rules.cluster}
        found = [(resource, known.get(resource, ())) for resource in wanted]
    else:
        cluster = [(CLUSTER, rules.cluster)] if rules.cluster else []
        found = [*cluster, *sorted(own.items(), key=lambda one: (one[0].kind.value, one[0].name))]
    return pb.DescribeAccessResponse(
        access=[access_to_wire(resource, known) for resource, known in found]
    )


def check_access(
    rules: Rulebook, who: Caller, request: pb.CheckAccessRequest
) -> pb.CheckAccessResponse:
    """About the caller, or a principal that the request names. Raises PenstockError.

    Of another principal, the groups are not known: a rule for a group of theirs does not count.
    Who else is in the rule is for those to see who may describe the cluster.
    """
    operation = operation_from_wire(request.operation)
    resource = resource_from_wire(request.resource)
    check_operation(operation, resource.kind)
    about_caller = request.principal in {"", who.principal}
    if about_caller and who.role is not Role.USER:
        return pb.CheckAccessResponse(principal=who.principal, allowed=True)
    principal = request.principal or who.principal
    check_principal(principal)
    groups = who.groups if about_caller else ()
    decision = rules.decide(principal, groups, operation, resource)
    answer = pb.CheckAccessResponse(principal=principal, allowed=decision.allowed)
    if decision.rule is not None and decision.of is not None:
        rule = decision.rule
        if not rules.decide(who.principal, who.groups, Operation.DESCRIBE, CLUSTER).allowed:
            own = identities(principal, groups)
            rule = replace(rule, principals=tuple(one for one in rule.principals if one in own))
        answer.resource.CopyFrom(resource_to_wire(decision.of))
        answer.rule.CopyFrom(rule_to_wire(rule))
    return answer

"""Rules of access on the wire: the protocol's messages to `core.authorization`, and back."""

from collections.abc import Iterable
from typing import Final

from penstock.core.authorization import (
    CLUSTER,
    AccessRole,
    Kind,
    Operation,
    Prefix,
    Resource,
    Rule,
)
from penstock.errors import ClusterError, ErrorCode
from penstock.proto.v1 import access_pb2 as pb

_OPERATIONS: Final = {
    pb.ACCESS_OPERATION_CREATE: Operation.CREATE,
    pb.ACCESS_OPERATION_READ: Operation.READ,
    pb.ACCESS_OPERATION_WRITE: Operation.WRITE,
    pb.ACCESS_OPERATION_DESCRIBE: Operation.DESCRIBE,
    pb.ACCESS_OPERATION_ALTER: Operation.ALTER,
    pb.ACCESS_OPERATION_DELETE: Operation.DELETE,
    pb.ACCESS_OPERATION_RESET: Operation.RESET,
}
_OPERATION_NUMBERS: Final = {known: number for number, known in _OPERATIONS.items()}
_ROLES: Final = {
    pb.ACCESS_ROLE_ADMIN: AccessRole.ADMIN,
    pb.ACCESS_ROLE_VIEWER: AccessRole.VIEWER,
}
_ROLE_NUMBERS: Final = {known: number for number, known in _ROLES.items()}
_PREFIXES: Final = {
    "topic_prefix": Kind.TOPIC,
    "group_prefix": Kind.GROUP,
    "transactional_id_prefix": Kind.TRANSACTIONAL_ID,
}
_NAMED: Final = {
    "topic": Kind.TOPIC,
    "group": Kind.GROUP,
    "transactional_id": Kind.TRANSACTIONAL_ID,
}


def operation_from_wire(number: int) -> Operation:
    """Raises ClusterError(INVALID_REQUEST) for a number that names none."""
    known = _OPERATIONS.get(pb.AccessOperation.ValueType(number))
    if known is None:
        names = ", ".join(f"{value} ({one.value})" for value, one in _OPERATIONS.items())
        raise _invalid(f"operation {number} is not known; known are {names}")
    return known


def operation_to_wire(operation: Operation) -> pb.AccessOperation.ValueType:
    """Its number."""
    return _OPERATION_NUMBERS[operation]


def resource_from_wire(message: pb.AccessResource) -> Resource:
    """Raises ClusterError(INVALID_REQUEST) if it names nothing."""
    which = message.WhichOneof("resource")
    if which == "cluster" and message.cluster:
        return CLUSTER
    if which in _NAMED:
        name: str = getattr(message, which)
        if name:
            return Resource(_NAMED[which], name)
    raise _invalid(
        "the request does not say what it is about; name a topic, a group, a transactional id, or "
        "set cluster to true"
    )


def resource_to_wire(resource: Resource) -> pb.AccessResource:
    """The message."""
    match resource.kind:
        case Kind.TOPIC:
            return pb.AccessResource(topic=resource.name)
        case Kind.GROUP:
            return pb.AccessResource(group=resource.name)
        case Kind.TRANSACTIONAL_ID:
            return pb.AccessResource(transactional_id=resource.name)
        case Kind.CLUSTER:
            return pb.AccessResource(cluster=True)


def rules_from_wire(messages: Iterable[pb.AccessRule]) -> tuple[Rule, ...]:
    """Raises ClusterError(INVALID_REQUEST) for operations and roles that are not known."""
    return tuple(_rule_from_wire(message) for message in messages)


def rules_to_wire(rules: Iterable[Rule]) -> list[pb.AccessRule]:
    """The messages, in order."""
    return [rule_to_wire(rule) for rule in rules]


def access_to_wire(resource: Resource, rules: Iterable[Rule]) -> pb.ResourceAccess:
    """One resource's rules."""
    return pb.ResourceAccess(resource=resource_to_wire(resource), rules=rules_to_wire(rules))


def _rule_from_wire(message: pb.AccessRule) -> Rule:
    role, prefix = None, None
    which = message.WhichOneof("scope")
    if which == "role":
        role = _ROLES.get(message.role)
        if role is None:
            raise _invalid(f"role {message.role} is not known; known are admin and viewer")
    elif which is not None:
        prefix = Prefix(_PREFIXES[which], getattr(message, which))
    return Rule(
        principals=tuple(message.principals),
        operations=tuple(operation_from_wire(number) for number in message.operations),
        role=role,
        prefix=prefix,
    )


def rule_to_wire(rule: Rule) -> pb.AccessRule:
    """The message."""
    message = pb.AccessRule(
        principals=rule.principals,
        operations=[_OPERATION_NUMBERS[operation] for operation in rule.operations],
    )
    if rule.role is not None:
        message.role = _ROLE_NUMBERS[rule.role]
    if rule.prefix is not None:
        match rule.prefix.kind:
            case Kind.TOPIC:
                message.topic_prefix = rule.prefix.text
            case Kind.GROUP:
                message.group_prefix = rule.prefix.text
            case Kind.TRANSACTIONAL_ID:
                message.transactional_id_prefix = rule.prefix.text
            case Kind.CLUSTER:
                raise AssertionError("checks refuse it")
    return message


def _invalid(what: str) -> ClusterError:
    return ClusterError(what, ErrorCode.INVALID_REQUEST)

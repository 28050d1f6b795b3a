"""What is wrong with rules, found before they are stored.

The bounds keep documents small: the cluster's rules and those of all groups are in one document,
which Kubernetes limits to 1 MiB, as are a topic's rules and up to 5,000 partitions.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from penstock.core.authorization.model import OPERATIONS, Kind, Operation, Prefix, Resource, Rule
from penstock.core.authorization.text import rules_to_json
from penstock.core.json_records import encode
from penstock.core.limits import GROUP_ID_MAX_CHARS, TRANSACTIONAL_ID_MAX_BYTES
from penstock.core.topic import TOPIC_NAME_MAX_CHARS
from penstock.errors import ErrorCode, MisuseError

RULES_MAX: Final = 200
"""Of one topic or group."""
CLUSTER_RULES_MAX: Final = 1_000
"""Of the cluster."""
PRINCIPALS_MAX: Final = 100
"""In one rule."""
PRINCIPAL_MAX_CHARS: Final = 500
RESOURCE_BYTES_MAX: Final = 32 * 1024
"""Of the rules of one topic or group, as JSON."""
CLUSTER_BYTES_MAX: Final = 256 * 1024
"""Of the rules of the cluster and of all groups together, as JSON."""
EVERYBODY: Final = "*"
SERVICE_ACCOUNT: Final = "serviceaccount:"
_LABEL: Final = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_ACCOUNT: Final = "[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?"
PRINCIPAL_PATTERN: Final = (
    rf"\*|serviceaccount:{_LABEL}/(\*|{_ACCOUNT})"
    r"|cert:[^\x00-\x1f\x7f]+|oidc(-group)?:[^\x00-\x1f\x7f]+/[^\x00-\x1f\x7f]+"
)
"""What `check_principal` accepts, as CRDs and JSON schemas take it."""
ONE_PRINCIPAL_PATTERN: Final = (
    rf"serviceaccount:{_LABEL}/{_ACCOUNT}"
    r"|cert:[^\x00-\x1f\x7f]+|oidc:[^\x00-\x1f\x7f]+/[^\x00-\x1f\x7f]+"
)
"""Those of them that are one principal: no group, and not all of a namespace."""
_PRINCIPAL: Final = re.compile(PRINCIPAL_PATTERN)
PRINCIPAL_FORMS: Final = (
    '"serviceaccount:<namespace>/<name>", "serviceaccount:<namespace>/*", "cert:<common name>", '
    '"oidc:<issuer>/<subject>", "oidc-group:<issuer>/<group>", or "*" for everybody who is known'
)
_PREFIX_MAX: Final[Mapping[Kind, int]] = {
    Kind.TOPIC: TOPIC_NAME_MAX_CHARS,
    Kind.GROUP: GROUP_ID_MAX_CHARS,
    Kind.TRANSACTIONAL_ID: TRANSACTIONAL_ID_MAX_BYTES,
}


def check_principal(principal: str, forms: str = PRINCIPAL_FORMS) -> None:
    """Raises MisuseError(INVALID_REQUEST) unless it has one of the forms of principals.

    `forms`: those that the message offers, if the caller takes fewer.
    """
    if len(principal) > PRINCIPAL_MAX_CHARS:
        raise _wrong(
            f"principal {principal[:60]!r}… has {len(principal)} characters, the limit is "
            f"{PRINCIPAL_MAX_CHARS}"
        )
    if _PRINCIPAL.fullmatch(principal) is None:
        raise _wrong(f"principal {principal!r} is not one; write {forms}")


def check_operation(operation: Operation, kind: Kind) -> None:
    """Raises MisuseError(INVALID_REQUEST) if there is no such operation for such a resource."""
    if operation not in OPERATIONS[kind]:
        raise _wrong(
            f"operation {operation.value} is not one of a {kind.value}; it has "
            + ", ".join(known.value for known in OPERATIONS[kind])
        )


def check_own_rules(resource: Resource, rules: Sequence[Rule]) -> None:
    """The own rules of a topic or group. Raises MisuseError(INVALID_REQUEST)."""
    where = f"rules of {resource}"
    _check_count(where, len(rules), RULES_MAX)
    for index, rule in enumerate(rules):
        with_index = f"rule {index} of {resource}"
        if rule.role is not None or rule.prefix is not None:
            raise _wrong(f"{with_index} has a role or a prefix: only the cluster's rules have one")
        _check_principals(with_index, rule)
        _check_operations(with_index, rule, resource.kind, beside=Operation.CREATE)
        if Operation.CREATE in rule.operations:
            raise _wrong(
                f"{with_index} allows Create: a topic that has rules is there already; allow it by "
                "a rule of the cluster with a topic prefix"
            )
    _check_bytes(where, len(encode(rules_to_json(rules))), RESOURCE_BYTES_MAX)


def check_cluster_rules(rules: Sequence[Rule]) -> None:
    """The cluster's rules. Raises MisuseError(INVALID_REQUEST)."""
    _check_count("rules of the cluster", len(rules), CLUSTER_RULES_MAX)
    for index, rule in enumerate(rules):
        with_index = f"rule {index} of the cluster"
        _check_principals(with_index, rule)
        if (rule.role is None) == (rule.prefix is None):
            raise _wrong(
                f"{with_index} must have either a role (admin, viewer) or one prefix, of topics, "
                "groups or transactional ids"
            )
        if rule.prefix is None:
            if rule.operations:
                raise _wrong(f"{with_index} has a role and operations; a role needs none")
            continue
        _check_prefix(with_index, rule.prefix)
        _check_operations(with_index, rule, rule.prefix.kind)


def check_total(rules: Sequence[Rule], groups: Mapping[str, Sequence[Rule]]) -> None:
    """The cluster's rules and those of all groups. Raises MisuseError(INVALID_REQUEST)."""
    text = encode(
        [rules_to_json(rules), {name: rules_to_json(own) for name, own in groups.items()}]
    )
    _check_bytes("the rules of the cluster and of all groups", len(text), CLUSTER_BYTES_MAX)


def _check_principals(where: str, rule: Rule) -> None:
    if not rule.principals:
        raise _wrong(f"{where} has no principals; name at least one: {PRINCIPAL_FORMS}")
    if len(rule.principals) > PRINCIPALS_MAX:
        raise _wrong(
            f"{where} has {len(rule.principals)} principals, the limit is {PRINCIPALS_MAX}; split "
            "it, or name a group"
        )
    for principal in rule.principals:
        try:
            check_principal(principal)
        except MisuseError as error:
            raise _wrong(f"{where}: {error.message}") from None


def _check_operations(
    where: str, rule: Rule, kind: Kind, *, beside: Operation | None = None
) -> None:
    """`beside`: what the message does not offer, because the caller refuses it."""
    if not rule.operations:
        known = ", ".join(one.value for one in OPERATIONS[kind] if one is not beside)
        raise _wrong(f"{where} has no operations; name at least one of {known}")
    for operation in rule.operations:
        try:
            check_operation(operation, kind)
        except MisuseError as error:
            raise _wrong(f"{where}: {error.message}") from None


def _check_prefix(where: str, prefix: Prefix) -> None:
    limit = _PREFIX_MAX.get(prefix.kind)
    if limit is None:
        raise _wrong(f"{where} has a prefix of the cluster, which has no name")
    if len(prefix.text) > limit:
        raise _wrong(
            f"{where} has a prefix of {len(prefix.text)} characters; a {prefix.kind.value} has "
            f"{limit} at most"
        )


def _check_count(what: str, count: int, limit: int) -> None:
    if count > limit:
        raise _wrong(
            f"{what}: {count}, the limit is {limit}; put principals into one rule, or use groups "
            "and prefixes"
        )


def _check_bytes(what: str, size: int, limit: int) -> None:
    if size > limit:
        raise _wrong(
            f"{what} take {size} characters, the limit is {limit}; use groups and prefixes"
        )


def _wrong(what: str) -> MisuseError:
    return MisuseError(what, ErrorCode.INVALID_REQUEST)

"""Rules of access, decided on a draft: those of one resource are replaced as a whole.

A topic's rules are in its document and go with it. Those of the cluster and of groups are in the
cluster's document. A group has no document, so its rules stay until they are replaced: a group that
was deleted and joined again has them still. To replace rules by the same ones changes nothing: so
the request can be decided again after an unknown write.
"""

from dataclasses import replace

from penstock.core.authorization import Kind, Resource, Rule
from penstock.core.authorization.checks import (
    check_cluster_rules,
    check_own_rules,
    check_total,
)
from penstock.core.control.contract import AlterAccess, Done, Severity
from penstock.core.control.draft import Draft
from penstock.core.control.requests import check_cluster_id
from penstock.core.limits import GROUP_ID_MAX_CHARS
from penstock.core.topic import refuse_internal
from penstock.errors import ClusterError, ErrorCode


def decide_alter_access(draft: Draft, request: AlterAccess) -> Done:
    """Replaces the rules. Raises PenstockError; then nothing has changed."""
    check_cluster_id(draft, request.cluster_id)
    resource, rules = request.resource, request.rules
    match resource.kind:
        case Kind.TOPIC:
            changed = _topic(draft, resource, rules, validate_only=request.validate_only)
        case Kind.GROUP:
            _check_group_id(resource.name)
            check_own_rules(resource, rules)
            groups = {**draft.cluster.access.groups, resource.name: rules}
            if not rules:
                del groups[resource.name]
            changed = _put(draft, draft.cluster.access.rules, groups, not request.validate_only)
        case Kind.CLUSTER:
            check_cluster_rules(rules)
            groups = dict(draft.cluster.access.groups)
            changed = _put(draft, rules, groups, not request.validate_only)
        case Kind.TRANSACTIONAL_ID:
            raise ClusterError(
                f"{resource} has no rules of its own; allow it by a rule of the cluster with a "
                "transactional id prefix",
                ErrorCode.INVALID_REQUEST,
            )
    if changed:
        draft.decide(Severity.INFO, "access altered", resource=str(resource), rules=len(rules))
    return Done()


def _topic(
    draft: Draft, resource: Resource, rules: tuple[Rule, ...], *, validate_only: bool
) -> bool:
    refuse_internal(resource.name, "given rules")
    topic = draft.topic(resource.name)
    if topic is None:
        raise ClusterError(
            f"there is no topic {resource.name!r}; check the name, create it, or allow its "
            "creation by a rule of the cluster with a topic prefix",
            ErrorCode.UNKNOWN_TOPIC,
        )
    check_own_rules(resource, rules)
    if validate_only or topic.access == rules:
        return False
    draft.put_topic(replace(topic, access=rules))
    return True


def _put(
    draft: Draft, rules: tuple[Rule, ...], groups: dict[str, tuple[Rule, ...]], apply: bool
) -> bool:
    check_total(rules, groups)
    known = draft.cluster.access
    if not apply or (known.rules == rules and known.groups == groups):
        return False
    draft.put_access(rules, groups)
    return True


def _check_group_id(group_id: str) -> None:
    if not 1 <= len(group_id) <= GROUP_ID_MAX_CHARS:
        raise ClusterError(
            f"group id {group_id[:40]!r} has {len(group_id)} characters; it must have 1 to "
            f"{GROUP_ID_MAX_CHARS}",
            ErrorCode.INVALID_REQUEST,
        )

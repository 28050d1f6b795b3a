"""Rules of access, decided on a draft: those of one resource are replaced as a whole.

A topic's rules are in its document and go with it. Those of the cluster and of groups are in the
cluster's document. A group has no document, so its rules stay until they are replaced: a group that
was deleted and joined again has them still. To replace rules by the same ones changes nothing,
whatever the request expects: so it can be decided again after an unknown write.

Who changes some of the rules reads them, and says which they expect to replace: of two who do so at
the same time, one is told to read them again.
"""

from dataclasses import replace

from penstock.core.authorization import Kind, Rule
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
            changed = _topic(draft, request)
        case Kind.GROUP:
            _check_group_id(resource.name)
            check_own_rules(resource, rules)
            _check_expected(request, draft.cluster.access.groups.get(resource.name, ()))
            groups = {**draft.cluster.access.groups, resource.name: rules}
            if not rules:
                del groups[resource.name]
            changed = _put(draft, draft.cluster.access.rules, groups, not request.validate_only)
        case Kind.CLUSTER:
            check_cluster_rules(rules)
            _check_expected(request, draft.cluster.access.rules)
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


def _check_expected(request: AlterAccess, known: tuple[Rule, ...]) -> None:
    if request.expected is not None and known not in (request.expected, request.rules):
        raise ClusterError(
            f"the rules of {request.resource} are not those that the request expects: somebody has "
            "changed them; read them again",
            ErrorCode.STALE_RULES,
        )


def _topic(draft: Draft, request: AlterAccess) -> bool:
    resource, rules = request.resource, request.rules
    refuse_internal(resource.name, "given rules")
    topic = draft.topic(resource.name)
    if topic is None:
        raise ClusterError(
            f"there is no topic {resource.name!r}; check the name, create it, or allow its "
            "creation by a rule of the cluster with a topic prefix",
            ErrorCode.UNKNOWN_TOPIC,
        )
    check_own_rules(resource, rules)
    _check_expected(request, topic.access)
    if request.validate_only or topic.access == rules:
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

"""All rules of a cluster, indexed by principal, and decisions by them.

    principal, its groups ─▶ Rights (kept until a rule changes) ─▶ decisions (kept beside them)

A decision that was made before is one look-up. One that was not costs a look-up per identity of the
caller and distinct length of its prefixes, whatever the number of rules. Identities of a caller:
the principal, its groups, for a service account every account of its namespace, and everybody.
"""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from penstock.core.authorization.checks import EVERYBODY, SERVICE_ACCOUNT
from penstock.core.authorization.model import (
    CLUSTER,
    AccessRole,
    Kind,
    Operation,
    Prefix,
    Resource,
    Rule,
)
from penstock.core.limits import GROUP_ID_MAX_CHARS, TRANSACTIONAL_ID_MAX_BYTES
from penstock.core.topic import TOPIC_NAME_MAX_CHARS

_CALLERS_MAX: Final = 10_000
_DECISIONS_MAX: Final = 10_000
"""Kept per caller; then all are forgotten, and made again when they are needed."""
_NAME_MAX: Final = max(TOPIC_NAME_MAX_CHARS, GROUP_ID_MAX_CHARS, TRANSACTIONAL_ID_MAX_BYTES)
"""A request may have longer names, of megabytes: what is decided about them is not kept."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether something is allowed, and why.

    Attributes:
        rule: Which rule allows it.
        of: Whose rule that is: the resource itself, or the cluster.
        by_option: No rule, but a role that the process was started with allows it.
    """

    allowed: bool
    rule: Rule | None = None
    of: Resource | None = None
    by_option: bool = False


_DENIED: Final = Decision(allowed=False)


_Own: TypeAlias = dict[tuple[Kind, str], list[Decision]]
"""What own rules of topics and groups give to one identity."""


@dataclass(slots=True)
class _Grants:
    """What the cluster's rules and options give to one identity."""

    roles: dict[AccessRole, Decision] = field(default_factory=dict)
    prefixes: dict[Kind, dict[str, list[Decision]]] = field(default_factory=dict)
    lengths: dict[Kind, tuple[int, ...]] = field(default_factory=dict)
    """Distinct lengths of the prefixes."""


class Rights:
    """What one caller may do. Valid until a rule changes: ask the `Rulebook` each time."""

    __slots__ = ("_found", "_grants", "_own")

    def __init__(self, grants: Sequence[_Grants], own: Sequence[_Own]) -> None:
        self._grants = grants
        self._own = own
        self._found: dict[tuple[Operation, Kind, str], Decision] = {}

    def decide(self, operation: Operation, kind: Kind, name: str = "") -> Decision:
        """Whether the caller may do this, and by which rule."""
        if len(name) > _NAME_MAX:
            return self._decide(operation, kind, name)
        key = (operation, kind, name)
        found = self._found.get(key)
        if found is None:
            if len(self._found) >= _DECISIONS_MAX:
                self._found.clear()
            found = self._found[key] = self._decide(operation, kind, name)
        return found

    def decide_all(self, operation: Operation, prefix: Prefix) -> Decision:
        """Whether the caller may do this to everything whose name begins so."""
        return self._by_role(operation) or self._by_prefix(operation, prefix.kind, prefix.text)

    def _decide(self, operation: Operation, kind: Kind, name: str) -> Decision:
        by_role = self._by_role(operation)
        if by_role is not None:
            return by_role
        for own in self._own:
            for decision in own.get((kind, name), ()):
                if _covers(decision, operation):
                    return decision
        return self._by_prefix(operation, kind, name)

    def _by_role(self, operation: Operation) -> Decision | None:
        for grants in self._grants:
            admin = grants.roles.get(AccessRole.ADMIN)
            if admin is not None:
                return admin
            if operation is Operation.DESCRIBE:
                viewer = grants.roles.get(AccessRole.VIEWER)
                if viewer is not None:
                    return viewer
        return None

    def _by_prefix(self, operation: Operation, kind: Kind, name: str) -> Decision:
        for grants in self._grants:
            known = grants.prefixes.get(kind)
            if known is None:
                continue
            for length in grants.lengths[kind]:
                if length > len(name):
                    continue
                for decision in known.get(name[:length], ()):
                    if _covers(decision, operation):
                        return decision
        return _DENIED


def _covers(decision: Decision, operation: Operation) -> bool:
    assert decision.rule is not None
    return operation is Operation.DESCRIBE or operation in decision.rule.operations


class Rulebook:
    """Decides. Feed it rules as they change; not thread-safe."""

    def __init__(self, admins: Iterable[str] = (), viewers: Iterable[str] = ()) -> None:
        """`admins` and `viewers` have these roles whatever the rules say."""
        self.generation = 0
        """Counts changes: a decision holds while it stands still."""
        self.complete = False
        """The cluster's rules are known."""
        self._always = {
            **dict.fromkeys(viewers, AccessRole.VIEWER),
            **dict.fromkeys(admins, AccessRole.ADMIN),
        }
        self._cluster: tuple[Rule, ...] = ()
        self._own: dict[Resource, tuple[Rule, ...]] = {}
        self._grants = _indexed((), self._always)
        self._own_grants: dict[str, _Own] = {}
        self._rights: dict[tuple[str, tuple[str, ...]], Rights] = {}

    # ------------------------------------------------------------ rules

    @property
    def cluster(self) -> tuple[Rule, ...]:
        """The cluster's rules."""
        return self._cluster

    def own(self) -> Iterator[tuple[Resource, tuple[Rule, ...]]]:
        """Every topic and group that has rules, with them."""
        yield from self._own.items()

    def put_cluster(self, rules: tuple[Rule, ...], groups: Mapping[str, tuple[Rule, ...]]) -> None:
        """Replaces the cluster's rules and those of all groups."""
        if not self.complete or rules != self._cluster:
            self._cluster, self.complete = rules, True
            self._grants = _indexed(rules, self._always)
            self._changed()
        known = {resource.name for resource in self._own if resource.kind is Kind.GROUP}
        for name in known | groups.keys():
            self._put(Resource(Kind.GROUP, name), groups.get(name, ()))

    def put_topic(self, name: str, rules: tuple[Rule, ...]) -> None:
        """Replaces a topic's rules; none: it has no rules, or is gone."""
        self._put(Resource(Kind.TOPIC, name), rules)

    def keep_topics(self, names: Container[str]) -> None:
        """Forgets the rules of all other topics."""
        for resource in list(self._own):
            if resource.kind is Kind.TOPIC and resource.name not in names:
                self._put(resource, ())

    def _put(self, resource: Resource, rules: tuple[Rule, ...]) -> None:
        before = self._own.pop(resource, ())
        if rules:
            self._own[resource] = rules
        if rules == before:
            return
        key = (resource.kind, resource.name)
        for principal in _principals(before):
            grants = self._own_grants[principal]
            del grants[key]
            if not grants:
                del self._own_grants[principal]
        for rule in rules:
            decision = Decision(allowed=True, rule=rule, of=resource)
            for principal in dict.fromkeys(rule.principals):
                self._own_grants.setdefault(principal, {}).setdefault(key, []).append(decision)
        self._changed()

    def _changed(self) -> None:
        self.generation += 1
        self._rights.clear()

    # ------------------------------------------------------------ decisions

    def knows(self, principal: str) -> bool:
        """Some rule or option names it."""
        return principal in self._grants or principal in self._own_grants

    def rights(self, principal: str, groups: tuple[str, ...] = ()) -> Rights:
        """What this caller may do now."""
        key = (principal, groups)
        found = self._rights.get(key)
        if found is None:
            if len(self._rights) >= _CALLERS_MAX:
                self._rights.clear()
            names = identities(principal, groups)
            found = self._rights[key] = Rights(
                [self._grants[name] for name in names if name in self._grants],
                [self._own_grants[name] for name in names if name in self._own_grants],
            )
        return found

    def decide(
        self, principal: str, groups: tuple[str, ...], operation: Operation, resource: Resource
    ) -> Decision:
        """Whether the caller may do this, and by which rule."""
        return self.rights(principal, groups).decide(operation, resource.kind, resource.name)


def _principals(rules: Iterable[Rule]) -> set[str]:
    return {principal for rule in rules for principal in rule.principals}


def identities(principal: str, groups: tuple[str, ...]) -> list[str]:
    """All principals whose rules hold for this caller."""
    names = [principal, *groups]
    if principal.startswith(SERVICE_ACCOUNT):
        names.append(principal.partition("/")[0] + "/*")
    return [*names, EVERYBODY]


def _indexed(cluster: Iterable[Rule], always: Mapping[str, AccessRole]) -> dict[str, _Grants]:
    index: dict[str, _Grants] = {}
    for principal, role in always.items():
        index.setdefault(principal, _Grants()).roles[role] = Decision(allowed=True, by_option=True)
    for rule in cluster:
        decision = Decision(allowed=True, rule=rule, of=CLUSTER)
        for principal in dict.fromkeys(rule.principals):
            grants = index.setdefault(principal, _Grants())
            if rule.role is not None:
                grants.roles.setdefault(rule.role, decision)
            if rule.prefix is not None:
                by_text = grants.prefixes.setdefault(rule.prefix.kind, {})
                by_text.setdefault(rule.prefix.text, []).append(decision)
    for grants in index.values():
        for kind, known in grants.prefixes.items():
            grants.lengths[kind] = tuple(sorted({len(text) for text in known}))
    return index

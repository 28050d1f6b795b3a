"""What a plan may change, and what it knows: less than all, if names are taken or kinds unreadable.

    taken by others ──┬─▶ that object is left alone, and what hangs on it
    kind unreadable ──┴─▶ not seen by any decision: neither there nor absent

Everything else is planned as if nothing was wrong (I28).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from penstock.kubernetes.names import CLUSTER_LABEL
from penstock_operator.model import Object, Observed, Severity, Wait
from penstock_operator.objects import DesiredCluster

Key = tuple[str, str]
POD: Final = "Pod"
CLAIM: Final = "PersistentVolumeClaim"
TRUST: Final = "ConfigMap"
"""The CA that controllers publish, and who owns its Secret."""
BUDGET: Final = "PodDisruptionBudget"


@dataclass(frozen=True, slots=True)
class Reach:
    """`observed`: what decisions see. `taken`: objects of others with our names, and what to do."""

    observed: Observed
    taken: Mapping[Key, Wait]
    barred: frozenset[Key]
    """What hangs on something that is taken."""

    def may_change(self, kind: str, name: str) -> bool:
        """Whether an object is known to be ours, or not to exist."""
        key = (kind, name)
        return self.observed.knows(kind) and key not in self.taken and key not in self.barred

    @property
    def waits(self) -> tuple[Wait, ...]:
        """What is out of reach, and why."""
        unread = [
            Wait("NotRead", f"{_plural(kind)} cannot be read, and stay as they are: {why}")
            for kind, why in sorted(self.observed.unknown.items())
        ]
        return (*self.taken.values(), *unread)


def reach_of(desired: DesiredCluster, observed: Observed) -> Reach:
    taken = _taken(desired, observed)
    barred = frozenset(
        key for key, needs in _hangs_on(desired).items() if not taken.keys().isdisjoint(needs)
    )
    seen = {
        key: live
        for key, live in observed.objects.items()
        if observed.knows(key[0]) and key not in taken
    }
    known = replace(
        observed,
        objects=seen,
        pods=observed.pods if observed.knows(POD) else {},
        claims=observed.claims if observed.knows(CLAIM) else {},
    )
    return Reach(known, taken, barred)


def former(desired: DesiredCluster, observed: Observed) -> tuple[Wait, ...]:
    """Objects of a deleted Cluster with this name: the garbage collector removes them."""
    return tuple(
        Wait(
            "FormerClusterLeaves",
            f"{kind} {name} of a deleted Cluster with the same name is being removed",
        )
        for (kind, name), live in sorted(observed.objects.items())
        if not _is_ours(desired, live) and _is_former(desired, live)
    )


def _taken(desired: DesiredCluster, observed: Observed) -> dict[Key, Wait]:
    """Objects with our names that belong to others: never touched."""
    waits = {}
    for (kind, name), live in sorted(observed.objects.items()):
        if _is_ours(desired, live) or not observed.knows(kind):
            continue
        text = (
            f"{kind} {name} exists but does not belong to this Cluster; rename the Cluster, "
            f"remove that {kind}, or label it {CLUSTER_LABEL}={desired.names.cluster} to adopt it"
        )
        waits[kind, name] = Wait("NameTaken", text, Severity.BLOCKED)
    return waits


def _is_ours(desired: DesiredCluster, live: Object) -> bool:
    """Also one with our label and no owner: it is adopted."""
    owners = _owners(live)
    if any(each["uid"] == desired.uid for each in owners):
        return True
    return _has_our_label(desired, live) and not owners


def _is_former(desired: DesiredCluster, live: Object) -> bool:
    owners = _owners(live)
    return bool(owners) and owners[0].get("kind") == "Cluster" and _has_our_label(desired, live)


def _owners(live: Object) -> list[Object]:
    owners: list[Object] = live["metadata"].get("ownerReferences") or []
    return [each for each in owners if each.get("controller")]


def _has_our_label(desired: DesiredCluster, live: Object) -> bool:
    labels: Mapping[str, str] = live["metadata"].get("labels") or {}
    return labels.get(CLUSTER_LABEL) == desired.names.cluster


def _hangs_on(desired: DesiredCluster) -> dict[Key, tuple[Key, ...]]:
    """Which objects would not work, or do harm, without which others."""
    names = desired.names
    account = ("ServiceAccount", names.controller)
    binding = ("RoleBinding", names.controller_binding(desired.installation.controller_role))
    controllers = ("Service", names.controllers)
    return {
        # It would give our permissions to somebody else's account.
        binding: (account,),
        ("Deployment", names.controller): (account, binding, controllers),
        ("StatefulSet", names.broker): (
            ("ServiceAccount", names.broker),
            ("Service", names.brokers),
            controllers,
        ),
    }


def _plural(kind: str) -> str:
    """`NetworkPolicies`, `Services`."""
    return f"{kind[:-1]}ies" if kind.endswith("y") else f"{kind}s"

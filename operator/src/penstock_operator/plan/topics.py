"""What to do about each Topic of a Cluster: pure, from the resources and what exists.

    Topic ──▶ steps (create, add partitions, alter)        core.manifest.topics decides them
          ├─▶ another factor                           its moves: `plan.factor`
          ├─▶ rules of access                              None: they are not managed
          ├─▶ finalizer on or off                          only deletionPolicy Delete needs one
          ├─▶ delete the topic                             if requested, still the same topic, and
          │                                                not protected from deletion
          └─▶ why not

A topic without a resource is left alone; a topic with a resource is adopted, whoever created it.
Settings that were changed in another way are reset to those of the resource. Of several resources
for one topic the oldest has it; the others change nothing, and never delete it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from penstock.core.authorization import Rule
from penstock.core.manifest import ManifestError, Topic, parse_manifest
from penstock.core.manifest.objects import DeletionPolicy
from penstock.core.manifest.topics import (
    AlterConfig,
    ChangeReplicas,
    ExistingTopic,
    Step,
    plan_topics,
)
from penstock.core.topic import DELETION_PROTECTION, protected_text
from penstock.kubernetes.names import API_VERSION, PAUSED
from penstock_operator.model import (
    BrokerFacts,
    Object,
    Severity,
    TopicResource,
    Wait,
)
from penstock_operator.move_model import MoveFacts
from penstock_operator.names import TOPIC_FINALIZER

PAUSED_REASON: Final = "Paused"
PROTECTED_REASON: Final = "DeletionProtected"
HIBERNATED_REASON: Final = "Hibernated"
NOT_POLLED: Final = frozenset({PAUSED_REASON, PROTECTED_REASON, HIBERNATED_REASON})
"""A person ends these waits, and then a resource changes, or the topic's document."""


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """For one resource. `finalizer`: True to add, False to remove, None as it is.

    `delete`: id of the topic to delete; empty = none. `wait`: why it is not Ready by itself.
    `factor`: replicas that its partitions have not, or not all.
    `access`: the rules that the topic must have; None = leave them. They do not wait for steps that
    are impossible: whoever is removed from a manifest must be out.
    """

    resource: TopicResource
    topic: str = ""
    steps: tuple[Step, ...] = ()
    factor: ChangeReplicas | None = None
    finalizer: bool | None = None
    delete: str = ""
    wait: Wait | None = None
    access: tuple[Rule, ...] | None = None


@dataclass(frozen=True, slots=True)
class TopicView:
    """What the plan knows: the Cluster's manifest (None: no such Cluster) and facts."""

    cluster: Object | None
    facts: BrokerFacts | None
    problem: str = ""
    owners: Mapping[str, str] = field(default_factory=dict)
    paused: bool = False
    """The whole Cluster is paused."""
    targets: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """By topic: how many replicas each partition that moves will have."""
    asleep: bool = False
    """The Cluster hibernates, so no broker answers."""


def plan_resources(
    resources: Sequence[TopicResource],
    cluster: Object | None,
    facts: BrokerFacts | None,
    problem: str = "",
    *,
    paused: bool = False,
    moves: MoveFacts | None = None,
    asleep: bool = False,
) -> list[TopicPlan]:
    """One plan per resource, in the order given. `problem`: why `facts` is None."""
    owners, targets = _owners(resources), _targets(moves)
    view = TopicView(cluster, facts, problem, owners, paused, targets, asleep)
    return [_plan(resource, view) for resource in resources]


def _targets(moves: MoveFacts | None) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    for one in () if moves is None else moves.moving.moves:
        if one.target:
            found[one.where.topic] = (*found.get(one.where.topic, ()), len(one.target))
    return found


def topic_name(body: Mapping[str, Any]) -> str:
    name: str = body["spec"].get("topicName") or body["metadata"]["name"]
    return name


def _owners(resources: Sequence[TopicResource]) -> dict[str, str]:
    """Which resource has a topic's name: the oldest, then the first by name; one that is being
    deleted only if no other has the name."""
    owners: dict[str, str] = {}
    for each in sorted(
        resources,
        key=lambda r: (r.deleting, r.body["metadata"].get("creationTimestamp", ""), r.name),
    ):
        owners.setdefault(topic_name(each.body), each.name)
    return owners


def _plan(resource: TopicResource, view: TopicView) -> TopicPlan:
    name = topic_name(resource.body)
    if view.paused:
        text = "its Cluster is paused by annotation: nothing is changed"
        return TopicPlan(resource, name, wait=Wait(PAUSED_REASON, text))
    annotations: Mapping[str, str] = resource.body["metadata"].get("annotations") or {}
    if view.cluster is not None and annotations.get(PAUSED) == "true":
        text = "paused by annotation: nothing is changed"
        return TopicPlan(resource, name, wait=Wait(PAUSED_REASON, text))
    if resource.deleting:
        return _plan_deletion(resource, name, view)
    if view.cluster is None:
        cluster = resource.body["spec"].get("cluster", "")
        text = f"waiting for Cluster {cluster} in this namespace"
        return TopicPlan(resource, name, wait=Wait("NoCluster", text))
    owner = view.owners.get(name, resource.name)
    if owner != resource.name:
        text = f"Topic/{owner} already has the topic {name}; delete one of them"
        # It may have had the topic before. What it does not have, it does not delete.
        finalizer = False if TOPIC_FINALIZER in resource.finalizers else None
        wait = Wait("NameTaken", text, Severity.BLOCKED)
        return TopicPlan(resource, name, finalizer=finalizer, wait=wait)
    return _plan_topic(resource, name, view)


def _plan_topic(resource: TopicResource, name: str, view: TopicView) -> TopicPlan:
    assert view.cluster is not None
    access = None
    try:
        manifest = parse_manifest([view.cluster, _document(resource.body)], "spec")
        topic = manifest.topics[0]
        finalizer = _finalizer(resource, topic)
        if view.facts is None or not view.facts.controller_reachable:
            wait = _no_answer(view, "the brokers do not answer yet")
            return TopicPlan(resource, name, finalizer=finalizer, wait=wait)
        existing, known = {}, view.facts.topics.get(name)
        if known is not None:
            targets = view.targets.get(name, ())
            existing[name] = ExistingTopic.of(known.factors, targets, known.config, known.inherited)
        access = topic.spec.access
        steps = plan_topics([topic], manifest.clusters[0].spec, existing, "spec")
    except ManifestError as error:
        text = "; ".join(str(problem) for problem in error.problems)
        wait = Wait("InvalidSpec", text, Severity.BLOCKED)
        return TopicPlan(resource, name, wait=wait, access=access)
    factors = [step for step in steps if isinstance(step, ChangeReplicas)]
    return TopicPlan(
        resource,
        name,
        tuple(step for step in steps if not isinstance(step, ChangeReplicas)),
        factors[0] if factors else None,
        finalizer,
        access=access,
    )


def _document(body: Mapping[str, Any]) -> Object:
    """The part of a Topic that the user writes."""
    return {
        "apiVersion": API_VERSION,
        "kind": "Topic",
        "metadata": {"name": body["metadata"]["name"]},
        "spec": body["spec"],
    }


def _finalizer(resource: TopicResource, topic: Topic) -> bool | None:
    wanted = topic.spec.deletion_policy is DeletionPolicy.DELETE
    return None if wanted == (TOPIC_FINALIZER in resource.finalizers) else wanted


def _plan_deletion(resource: TopicResource, name: str, view: TopicView) -> TopicPlan:
    """The finalizer is removed when nothing is left to do, as when the Cluster no longer exists, or
    when another resource has the topic."""
    if TOPIC_FINALIZER not in resource.finalizers:
        return TopicPlan(resource, name)
    if view.owners.get(name, resource.name) != resource.name:
        return TopicPlan(resource, name, finalizer=False)
    keeps = resource.body["spec"].get("deletionPolicy", "Retain") != "Delete"
    mine = (resource.body.get("status") or {}).get("topicId", "")
    if view.cluster is None or keeps or not mine:
        return TopicPlan(resource, name, finalizer=False)
    if view.facts is None or not view.facts.controller_reachable:
        wait = _no_answer(view, "waiting for the brokers to delete the topic")
        return TopicPlan(resource, name, wait=wait)
    found = view.facts.topics.get(name)
    if found is None or found.topic_id != mine:
        # Deleted, or a different topic with this name, which we must not delete (I26).
        return TopicPlan(resource, name, finalizer=False)
    if not found.protected:
        return TopicPlan(resource, name, delete=mine, finalizer=False)
    if not _lifts_protection(resource):
        wait = Wait(PROTECTED_REASON, protected_text(name, inherited=False), Severity.BLOCKED)
        return TopicPlan(resource, name, wait=wait)
    lift = AlterConfig(name, {DELETION_PROTECTION: "false"})
    return TopicPlan(resource, name, (lift,), delete=mine, finalizer=False)


def _no_answer(view: TopicView, what: str) -> Wait:
    if view.asleep:
        text = "its Cluster hibernates; this goes on when it wakes"
        return Wait(HIBERNATED_REASON, text)
    return Wait("BrokersDoNotAnswer", f"{what}: {view.problem or 'no controller is active'}")


def _lifts_protection(resource: TopicResource) -> bool:
    """Whether the resource says that its topic is not protected. No other setting of a resource
    that is being deleted is applied, so that one which a command has set on the topic holds, too.
    """
    config: Mapping[str, Any] = resource.body["spec"].get("config") or {}
    return config.get(DELETION_PROTECTION) == "false"

"""Carries out a topic plan in a running cluster, through the public admin client.

`topics` decides, this module makes the calls. Also has the last step of starting: waiting until the
controller counts every broker as alive, because topics cannot be placed before.
"""

import time
from collections.abc import Callable, Mapping

from penstock.client import Admin, MovesDescription, ReplicaMove
from penstock.client.admin.move_facts import cluster_facts
from penstock.client.config import SecurityOptions
from penstock.core import balance
from penstock.core.authorization import CLUSTER, Kind, Resource, Rule
from penstock.core.limits import REPLICA_CHANGES_MAX
from penstock.core.manifest import Cluster, Manifest, ManifestError
from penstock.core.manifest.access import plan_access
from penstock.core.manifest.fields import Problem
from penstock.core.manifest.quotas import plan_quotas
from penstock.core.manifest.topics import (
    AddPartitions,
    AlterConfig,
    ChangeReplicas,
    CreateTopic,
    ExistingTopic,
    Step,
    plan_topics,
)
from penstock.core.types import MoveReason
from penstock.errors import ClusterError, ErrorCode, PenstockError

POLL_S = 0.1


def apply_topics(
    bootstrap: str,
    manifest: Manifest,
    cluster: Cluster,
    files: Mapping[str, str],
    *,
    dry_run: bool = False,
) -> list[str]:
    """Creates and alters topics, rules of access and quotas; returns a line for each change.

    `files`: `StateDirectory.client_files`. `dry_run`: nothing is changed, the lines are the same.

    Raises ManifestError, with nothing done, if any change is impossible.
    """
    topics = manifest.topics_of(cluster.name)
    rules = _rules(cluster, manifest)
    quotas = cluster.spec.quotas
    if not topics and not rules and quotas is None:
        return []
    with Admin(bootstrap, **options_of(files)) as admin:
        moving = admin.describe_moves()
        existing = _existing(admin, moving)
        steps = plan_topics(topics, cluster.spec, existing, manifest.source)
        moves = _moves(admin, moving, steps, manifest.source)
        altered = plan_access(rules, admin.describe_access(list(rules))) if rules else []
        limited = None if quotas is None else plan_quotas(quotas, admin.describe_quotas())
        if not dry_run:
            _change_topics(admin, steps, moves)
            for each in altered:
                admin.alter_access(each.resource, each.rules)
            if limited is not None:
                admin.alter_quotas(limited.rules)
    note = "" if files["ca_file"] else "; nobody is asked who they are without --secure"
    about_callers = [*altered, *([] if limited is None else [limited])]
    return [*(str(step) for step in steps), *(f"{each}{note}" for each in about_callers)]


def _change_topics(admin: Admin, steps: list[Step], moves: list[ReplicaMove]) -> None:
    grown = [step for step in steps if isinstance(step, AddPartitions)]
    for step in steps:
        if step not in grown:
            _take(admin, step)
    _move(admin, moves)
    for step in grown:  # with as many replicas as the topic shall have by now
        _take(admin, step)


def _rules(cluster: Cluster, manifest: Manifest) -> dict[Resource, tuple[Rule, ...]]:
    """The rules that each resource must have, of the resources whose rules are managed."""
    wanted = {CLUSTER: cluster.spec.access}
    for topic in manifest.topics_of(cluster.name):
        wanted[Resource(Kind.TOPIC, topic.spec.topic_name)] = topic.spec.access
    for group in manifest.groups_of(cluster.name):
        wanted[Resource(Kind.GROUP, group.spec.group_id)] = group.spec.access
    return {resource: rules for resource, rules in wanted.items() if rules is not None}


def _existing(admin: Admin, moving: MovesDescription) -> dict[str, ExistingTopic]:
    return {
        name: ExistingTopic.of(
            [len(one.replicas) for one in seen.partitions],
            [len(one.target) for one in moving.moves if one.target and one.where.topic == name],
            seen.configs,
        )
        for name, seen in admin.describe_topics().items()
    }


def _moves(
    admin: Admin, moving: MovesDescription, steps: list[Step], source: str
) -> list[ReplicaMove]:
    """What moves so that topics have their replicas. Raises ManifestError if that cannot be."""
    factors = [step for step in steps if isinstance(step, ChangeReplicas)]
    if not factors:
        return []
    alive = [broker.broker_id for broker in moving.brokers if broker.alive]
    topics, logs = admin.describe_topics(), admin.describe_logs(broker_ids=alive)
    seen = cluster_facts(moving, topics, logs)
    moves: list[ReplicaMove] = []
    problems = []
    for step in factors:
        made = balance.plan(seen.facts, balance.Factor(step.topic, step.replicas))
        if isinstance(made, balance.Infeasible):
            text = f"is {step.replicas}, and nothing can be moved: {made.reason}"
            problems.append(Problem(f"Topic/{step.topic}", "spec.replicas", text))
            continue
        topic_id = seen.topic_ids[step.topic]
        moves += [
            ReplicaMove(each.partition, each.target, each.expected, topic_id) for each in made.moves
        ]
    if problems:
        raise ManifestError(source, problems)
    return moves


def _move(admin: Admin, moves: list[ReplicaMove]) -> None:
    """Replicas are copied afterwards: `penstock partitions status`. Raises PenstockError."""
    for begin in range(0, len(moves), REPLICA_CHANGES_MAX):
        part = moves[begin : begin + REPLICA_CHANGES_MAX]
        outcomes = admin.alter_replicas(part, reason=MoveReason.FACTOR, change_factor=True)
        for one in outcomes:
            if one.error is not None:
                raise one.error


def _take(admin: Admin, step: Step) -> None:
    match step:
        case CreateTopic():
            admin.create_topic(step.topic, step.partitions, step.replicas, step.config)
        case AddPartitions():
            admin.create_partitions(step.topic, step.partitions)
        case AlterConfig():
            admin.alter_configs(step.topic, step.changes, unset=step.removals)
        case ChangeReplicas():
            pass  # its moves follow (`_move`), once settings allow them


def options_of(files: Mapping[str, str]) -> SecurityOptions:
    """Keyword arguments of a client."""
    return {"ca_file": files["ca_file"], "token_file": files["token_file"]}


def wait_for_brokers(
    bootstrap: str,
    brokers: int,
    deadline: float,
    check: Callable[[], None],
    files: Mapping[str, str],
) -> None:
    """Returns when the controller counts `brokers` brokers as alive.

    `deadline` is a time on the monotonic clock. `check` is called before every attempt and raises
    if waiting has become pointless. Raises ClusterError(REQUEST_TIMED_OUT).
    """
    last = "no answer yet"
    with Admin(bootstrap, **options_of(files)) as admin:
        while time.monotonic() < deadline:
            check()
            try:
                seen = admin.describe_cluster()
                alive = sum(broker.alive for broker in seen.brokers)
                if alive >= brokers and seen.controller_reachable:
                    return
                last = f"{alive} of {brokers} brokers are alive"
            except PenstockError as error:
                if not error.retriable:
                    raise
                last = error.message
            time.sleep(POLL_S)
    raise ClusterError(
        f"the cluster did not become ready: {last}; see the logs with `penstock local logs`",
        ErrorCode.REQUEST_TIMED_OUT,
    )

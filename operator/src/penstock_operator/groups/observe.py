"""What the brokers and the API server report about one group, as `Seen`.

The coordinator reports state, members and committed offsets; the leaders of the partitions report
the distance to the log end. If a leader is down, the lag is unknown, but not the group.
"""

from collections.abc import Mapping
from typing import Final

from penstock.client import AsyncAdmin, GroupDescription, GroupState
from penstock.core.lag import PartitionLag
from penstock.core.types import TopicPartition
from penstock.errors import ErrorCode, PenstockError
from penstock.kubernetes.errors import KubernetesError
from penstock.kubernetes.names import CLUSTER_LABEL
from penstock_operator.groups.model import NO_GROUP, GroupFacts, GroupResource, Lag, ScaleFacts
from penstock_operator.kube import Kube
from penstock_operator.model import Severity, Wait

OPERATOR_SELECTOR: Final = "app.kubernetes.io/name=penstock-operator"
"""Of the operator's own pods, as its chart selects them."""


async def see_group(admin: AsyncAdmin, group_id: str) -> GroupFacts:
    """Raises PenstockError if its coordinator does not answer."""
    try:
        seen = await admin.describe_group(group_id)
    except PenstockError as error:
        if error.code is ErrorCode.UNKNOWN_GROUP:
            return GroupFacts(NO_GROUP, lag_problem="the group does not exist")
        raise
    assert seen.state is not GroupState.DEAD
    try:
        lags = await admin.group_lag(seen)
    except PenstockError as error:
        return GroupFacts(
            seen.state.value,
            len(seen.members),
            committed=None,
            lag_problem=error.message,
            last_reset_id=seen.last_reset_id,
            last_reset_ms=seen.last_reset_ms,
        )
    return facts_of(seen, lags)


def facts_of(seen: GroupDescription, lags: Mapping[TopicPartition, PartitionLag]) -> GroupFacts:
    """Facts of a group that exists. While it has members, only the partitions they share count for
    scaling: a topic that they no longer read would ask for more pods for ever."""
    lag, problem = _total(lags)
    targets = {where for member in seen.members for where in member.target if where in lags}
    shared = {where: lags[where] for where in targets} or lags
    backlog, _ = _total(shared)
    return GroupFacts(
        seen.state.value,
        len(seen.members),
        committed={where: each.committed for where, each in lags.items()},
        lag=lag,
        lag_problem=problem,
        reading=len(shared),
        backlog=None if backlog is None else backlog.records,
        last_reset_id=seen.last_reset_id,
        last_reset_ms=seen.last_reset_ms,
    )


def _total(lags: Mapping[TopicPartition, PartitionLag]) -> tuple[Lag | None, str]:
    """The sum, or why it is unknown. A partition without records has nothing to read, wherever its
    reader starts."""
    if not lags:
        return None, "it has no partitions and no committed offsets"
    known = [each for each in lags.values() if each.committed >= 0 or each.log_start < each.end]
    unknown = [each for each in known if each.records is None or each.lag_ms is None]
    if unknown:
        bare = sum(each.committed < 0 for each in unknown)
        what = "no offset is committed" if bare else "the age of its records is unknown"
        return None, f"{what} in {bare or len(unknown)} of {len(lags)} partitions"
    records = sum(each.records or 0 for each in known)
    oldest_ms = max((each.lag_ms or 0 for each in known), default=0)
    return Lag(records, oldest_ms // 1_000), ""


async def see_scale(kube: Kube, resource: GroupResource) -> ScaleFacts | Wait | None:
    """None if there is nothing to scale. Raises KubernetesError, but not if forbidden."""
    target = resource.body["spec"].get("scaleTarget")
    if not target:
        return None
    kind, name = target.get("kind", "Deployment"), target["name"]
    try:
        found = await kube.get_scale(kind, resource.namespace, name)
    except KubernetesError as error:
        if error.status == 403:
            return not_allowed(kind)
        raise
    if found is None:
        return Wait("NoScaleTarget", f"waiting for {kind} {name} in this namespace")
    if _is_ours((found.get("status") or {}).get("selector") or ""):
        return _not_a_consumer(kind, name)
    replicas = int((found.get("spec") or {}).get("replicas") or 0)
    return ScaleFacts(replicas, found["metadata"]["resourceVersion"])


def not_allowed(kind: str) -> Wait:
    """The chart does not grant this permission by default."""
    text = (
        f"the operator has no permission to scale a {kind}: install its chart with "
        "consumerScaling.enabled"
    )
    return Wait("ScalingNotAllowed", f"{text}=true", Severity.BLOCKED)


def _is_ours(selector: str) -> bool:
    """Whether pods selected so are of a Cluster, or the operator. Unlike labels of an object, its
    selector cannot be changed."""
    wanted = selector.split(",")
    return OPERATOR_SELECTOR in wanted or any(
        each.startswith(f"{CLUSTER_LABEL}=") for each in wanted
    )


def _not_a_consumer(kind: str, name: str) -> Wait:
    text = (
        f"{kind} {name} is a part of Penstock, and not scaled for a ConsumerGroup; name one of "
        "consumers in spec.scaleTarget"
    )
    return Wait("ScalingNotAllowed", text, Severity.BLOCKED)

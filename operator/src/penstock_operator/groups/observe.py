"""What the brokers and the API server say about one group, as `Seen`.

The coordinator tells state, members and committed offsets; the leaders of the partitions tell how
far those are from the end. A leader that is away makes lag unknown, not the group.
"""

from collections.abc import Mapping

from penstock.client import AsyncAdmin, GroupDescription, GroupState
from penstock.core.lag import PartitionLag
from penstock.core.types import TopicPartition
from penstock.errors import ErrorCode, PenstockError
from penstock.kubernetes.errors import KubernetesError
from penstock_operator.groups.model import NO_GROUP, GroupFacts, GroupResource, Lag, ScaleFacts
from penstock_operator.kube import Kube
from penstock_operator.model import Severity, Wait


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
    """A group that is there. While it has members, only what they share asks for more of them:
    a topic they no longer read would ask for ever."""
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
    """The sum, or why it is unknown. A partition that holds no record has nothing to be read,
    wherever its reader may begin."""
    if not lags:
        return None, "it has neither partitions nor committed offsets"
    known = [each for each in lags.values() if each.committed >= 0 or each.log_start < each.end]
    unknown = [each for each in known if each.records is None or each.lag_ms is None]
    if unknown:
        bare = sum(each.committed < 0 for each in unknown)
        what = "nothing is committed" if bare else "nobody can say how old its records are"
        return None, f"{what} in {bare or len(unknown)} of {len(lags)} partitions"
    records = sum(each.records or 0 for each in known)
    oldest_ms = max((each.lag_ms or 0 for each in known), default=0)
    return Lag(records, oldest_ms // 1_000), ""


async def see_scale(kube: Kube, resource: GroupResource) -> ScaleFacts | Wait | None:
    """None if nothing is to be scaled. Raises KubernetesError, but not for want of rights."""
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
        return Wait("NoScaleTarget", f"there is no {kind} {name} in this namespace; it is awaited")
    replicas = int((found.get("spec") or {}).get("replicas") or 0)
    return ScaleFacts(replicas, found["metadata"]["resourceVersion"])


def not_allowed(kind: str) -> Wait:
    """The chart gives no such right by itself."""
    text = f"the operator may not scale a {kind}: install its chart with consumerScaling.enabled"
    return Wait("ScalingNotAllowed", f"{text}=true", Severity.BLOCKED)

"""Topic requests decided on a draft: create, delete, more partitions, configs.

Everything is checked before anything changes; each topic of a request succeeds or fails on its
own, and `validate_only` runs the same checks and drops the outcome. After an unknown write the
request is decided again on what the store contains, so its own effect must not look like another
request's: a created topic is recognized by its id, the others by the earlier answer in `before`.

Internal topics hold what brokers remember: nobody changes or deletes them, and they are created
only as brokers do it. Here, because every way to change a topic ends here.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from penstock.core.control.contract import (
    AlterConfigs,
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    Done,
    NewTopic,
    Result,
    Severity,
    TopicOutcome,
    TopicsChanged,
)
from penstock.core.control.documents import TopicDocument
from penstock.core.control.draft import Draft, election_settings
from penstock.core.control.election import Liveness, new_partition, settled_with
from penstock.core.control.formats import check_configs
from penstock.core.control.partition import PartitionDocument
from penstock.core.control.placement import place
from penstock.core.control.requests import check_cluster_id
from penstock.core.control.sizes import PartitionSizes
from penstock.core.features import FEATURE_OF_TOPIC, missing
from penstock.core.topic import (
    DELETION_PROTECTION,
    INTERNAL_TOPICS,
    PARTITIONS_MAX,
    TopicConfig,
    is_internal,
    protected_text,
    refuse_internal,
    validate_topic_name,
)
from penstock.core.types import BrokerId, TopicId
from penstock.core.words import listed
from penstock.errors import ClusterError, ErrorCode, PenstockError

TOPICS_MAX: Final = 1_000
"""In one request."""


def decide_create_topics(draft: Draft, request: CreateTopics, liveness: Liveness) -> TopicsChanged:
    """Creates what is valid; one outcome per topic, in order."""
    check_cluster_id(draft, request.cluster_id)
    check_topic_count(len(request.topics))
    return _per_topic(
        [(topic.name, topic.topic_id) for topic in request.topics],
        lambda index: _create_topic(
            draft, request.topics[index], liveness, validate_only=request.validate_only
        ),
    )


def decide_delete_topics(
    draft: Draft, request: DeleteTopics, before: Result | PenstockError | None
) -> TopicsChanged:
    """Deletes what exists, has the expected id and is not protected; one outcome per topic."""
    check_cluster_id(draft, request.cluster_id)
    check_topic_count(len(request.topics))
    deleted_before: dict[str, TopicId] = {}
    if isinstance(before, TopicsChanged):
        deleted_before = {
            outcome.topic: outcome.topic_id for outcome in before.outcomes if outcome.error is None
        }

    def delete(index: int) -> TopicId:
        name, topic_id = request.topics[index]
        refuse_internal(name, "deleted")
        found = draft.topic(name)
        earlier = deleted_before.get(name)
        if earlier is not None and (found is None or found.topic_id != earlier):
            # Our own, from a write whose outcome was unknown; it may have made the next one, too.
            if not draft.is_deleted(earlier):
                draft.remember_deleted(earlier)
            return earlier
        if found is None:
            raise _unknown_topic(name)
        if topic_id and topic_id != found.topic_id:
            raise ClusterError(
                f"topic {name!r} has id {found.topic_id}, not {topic_id}: it was deleted and "
                "re-created",
                ErrorCode.TOPIC_ID_MISMATCH,
            )
        _check_deletable(draft, found)
        draft.check_deletions()
        if not request.validate_only:
            draft.remove_topic(found)
            draft.decide(Severity.INFO, "topic deleted", topic=name, topic_id=found.topic_id)
        return found.topic_id

    return _per_topic(list(request.topics), delete)


def decide_create_partitions(
    draft: Draft,
    request: CreatePartitions,
    liveness: Liveness,
    before: Result | PenstockError | None,
) -> Done:
    """More partitions, with the replication factor of partition 0."""
    check_cluster_id(draft, request.cluster_id)
    refuse_internal(request.topic, "given more partitions")
    topic = _existing_topic(draft, request.topic)
    have, wanted = len(topic.partitions), request.partitions
    if isinstance(before, Done) and have == wanted:
        return Done()
    if not have < wanted <= PARTITIONS_MAX:
        raise ClusterError(
            f"topic {topic.name!r} has {have} partitions and {wanted} were requested; partitions "
            f"can only be added, up to {PARTITIONS_MAX}",
            ErrorCode.INVALID_PARTITIONS,
        )
    _check_room(draft, topic.name, wanted - have)
    factor = len(topic.partitions[0].target or topic.partitions[0].state.replicas)
    usable = _usable_brokers(draft, liveness, factor, topic.name)
    existing = [partition.target or partition.state.replicas for partition in topic.partitions]
    placed = place(usable, wanted - have, factor, draft.load().for_topic(existing))
    more = tuple(new_partition(replicas, liveness.staying) for replicas in placed)
    _check_size(draft, topic.name, topic.partitions + more)
    if request.validate_only:
        draft.forget_load()
        return Done()
    draft.put_topic(replace(topic, partitions=topic.partitions + more))
    draft.decide(Severity.INFO, "partitions added", topic=topic.name, before=have, after=wanted)
    return Done()


def decide_alter_configs(draft: Draft, request: AlterConfigs, liveness: Liveness) -> Done:
    """Sets and unsets keys; unsetting an unset key is fine.

    Partitions without a leader may get one by the new settings: nothing else would check them again
    before one of their brokers came or went.
    """
    check_cluster_id(draft, request.cluster_id)
    refuse_internal(request.topic, "altered")
    topic = _existing_topic(draft, request.topic)
    both = sorted(set(request.set_configs) & set(request.unset_configs))
    if both:
        raise ClusterError(
            f"configs {both} of topic {topic.name!r} are both set and unset in one request",
            ErrorCode.INVALID_REQUEST,
        )
    TopicConfig.parse({name: _any_value(name) for name in request.unset_configs})
    kept = {
        name: value for name, value in topic.configs.items() if name not in request.unset_configs
    }
    configs = {**kept, **request.set_configs}
    # No move may leave it with fewer replicas than it then needs in sync.
    factor = min(
        len(replicas)
        for partition in topic.partitions
        for replicas in (partition.state.replicas, partition.target)
        if replicas
    )
    config = _checked_config(draft, topic.name, configs, factor)
    if request.validate_only or configs == topic.configs:
        return Done()
    partitions = tuple(
        settled_with(partition, election_settings(config, len(partition.state.replicas)))
        for partition in topic.partitions
    )
    altered = replace(topic, configs=configs, partitions=partitions)
    draft.put_topic(altered)
    draft.decide(
        Severity.INFO,
        "topic configs altered",
        topic=topic.name,
        set=dict(request.set_configs),
        unset=request.unset_configs,
    )
    draft.settle_all(liveness, None, only=altered)
    return Done()


# ---------------------------------------------------------------- parts


def _per_topic(
    topics: list[tuple[str, TopicId]], decide: Callable[[int], TopicId]
) -> TopicsChanged:
    times = Counter(name for name, _ in topics)
    outcomes = []
    for index, (name, topic_id) in enumerate(topics):
        try:
            if times[name] > 1:
                raise ClusterError(
                    f"topic {name!r} is named {times[name]} times in one request; name it once",
                    ErrorCode.INVALID_REQUEST,
                )
            outcomes.append(TopicOutcome(name, decide(index)))
        except PenstockError as error:
            outcomes.append(TopicOutcome(name, topic_id, error))
    return TopicsChanged(tuple(outcomes))


def _create_topic(
    draft: Draft, new: NewTopic, liveness: Liveness, *, validate_only: bool
) -> TopicId:
    validate_topic_name(new.name)
    existing = draft.topic(new.name)
    if existing is not None:
        if existing.topic_id == new.topic_id:
            return existing.topic_id  # our own, from a write whose outcome was unknown
        raise ClusterError(
            f"topic {new.name!r} already exists with id {existing.topic_id} and "
            f"{len(existing.partitions)} partitions",
            ErrorCode.TOPIC_ALREADY_EXISTS,
        )
    if draft.is_deleted(new.topic_id):
        raise ClusterError(
            f"topic {new.name!r} was created with id {new.topic_id}, and deleted since; create it "
            "with another id",
            ErrorCode.TOPIC_ID_MISMATCH,
        )
    _check_features(draft, new.name)
    _check_internal(draft, new)
    factor = len(new.assignment[0]) if new.assignment else _factor(draft, new)
    configs = dict(new.configs or {})
    _checked_config(draft, new.name, configs, factor)
    wanted = len(new.assignment) or new.partitions or draft.config.default_partitions
    _check_room(draft, new.name, wanted)
    placed = _place_new(draft, new, liveness, factor)
    partitions = tuple(new_partition(replicas, liveness.staying) for replicas in placed)
    _check_size(draft, new.name, partitions)
    if validate_only:
        draft.forget_load()
        return new.topic_id
    cluster = draft.cluster
    draft.put_topic(
        TopicDocument(
            name=new.name,
            topic_id=new.topic_id,
            controller_epoch=cluster.controller_epoch,
            metadata_version=cluster.metadata_version,
            configs=configs,
            partitions=partitions,
        )
    )
    draft.decide(
        Severity.INFO,
        "topic created",
        topic=new.name,
        topic_id=new.topic_id,
        partitions=len(partitions),
        replication_factor=factor,
        configs=configs,
        live=len(liveness.staying),
    )
    return new.topic_id


def check_topic_count(topics: int) -> None:
    """Raises ClusterError(INVALID_REQUEST) for a request that names too many. Whoever does anything
    for each of them asks before."""
    if topics > TOPICS_MAX:
        raise ClusterError(
            f"the request names {topics} topics, the limit is {TOPICS_MAX}; split it into several",
            ErrorCode.INVALID_REQUEST,
        )


def _check_room(draft: Draft, topic: str, more: int) -> None:
    """Whether the cluster may have as many more partitions. What brokers need for themselves is
    always there."""
    if is_internal(topic):
        return
    have, limit = draft.partition_count(), draft.config.partitions_max
    if have + more > limit:
        raise ClusterError(
            f"topic {topic!r} requests {more} more partitions, but the cluster has {have} of at "
            f"most {limit} (max.partitions); delete topics, request fewer, or raise the limit",
            ErrorCode.INVALID_PARTITIONS,
        )


def _check_size(draft: Draft, topic: str, partitions: tuple[PartitionDocument, ...]) -> None:
    """They were placed; if they do not fit, that is dropped."""
    try:
        PartitionSizes(topic, partitions).check()
    except ClusterError:
        draft.forget_load()
        raise


def _check_features(draft: Draft, topic: str) -> None:
    feature = FEATURE_OF_TOPIC.get(topic)
    if feature is None:
        return
    brokers = {known.broker_id: known.features for known in draft.cluster.brokers.values()}
    without = missing(feature, brokers)
    if without:
        raise ClusterError(
            f"topic {topic} needs brokers that support {feature!r}, but brokers {without} were "
            "registered by an older release: upgrade them, or unregister those that no longer "
            "exist",
            ErrorCode.INVALID_REQUEST,
        )


def _check_internal(draft: Draft, new: NewTopic) -> None:
    if not is_internal(new.name):
        return
    if new.name not in INTERNAL_TOPICS:
        refuse_internal(new.name, "created by users")
    if draft.config.topic_config(new.configs or {}).cleanup_policy.deletes:
        raise ClusterError(
            f"internal topic {new.name} must have cleanup.policy=compact: otherwise what brokers "
            "remember there would be deleted; let the brokers create it, on first use",
            ErrorCode.INVALID_CONFIG,
        )


def _factor(draft: Draft, new: NewTopic) -> int:
    return new.replication_factor or draft.config.default_replication_factor


def _place_new(
    draft: Draft, new: NewTopic, liveness: Liveness, factor: int
) -> list[tuple[BrokerId, ...]]:
    load = draft.load().for_topic()
    if new.assignment:
        _check_assignment(draft, new, liveness)
        for replicas in new.assignment:
            load.add(replicas)
        return list(new.assignment)
    partitions = new.partitions or draft.config.default_partitions
    if not 1 <= partitions <= PARTITIONS_MAX:
        raise ClusterError(
            f"topic {new.name!r} requests {partitions} partitions; it must be 1 to "
            f"{PARTITIONS_MAX}",
            ErrorCode.INVALID_PARTITIONS,
        )
    return place(_usable_brokers(draft, liveness, factor, new.name), partitions, factor, load)


def _usable_brokers(
    draft: Draft, liveness: Liveness, factor: int, topic: str
) -> Mapping[BrokerId, str]:
    known = draft.cluster.brokers
    cordoned = draft.cordoned_for_placement
    usable = {broker_id: known[broker_id].rack for broker_id in sorted(liveness.staying - cordoned)}
    if not 1 <= factor <= len(usable):
        kept_free = f" (cordoned: {listed(sorted(cordoned))})" if cordoned else ""
        raise ClusterError(
            f"topic {topic!r} needs {factor} replicas, but only {len(usable)} of {len(known)} "
            f"brokers are available ({listed(usable)}){kept_free}; start brokers or request fewer "
            "replicas",
            ErrorCode.INVALID_REPLICATION_FACTOR,
        )
    return usable


def _check_assignment(draft: Draft, new: NewTopic, liveness: Liveness) -> None:
    if new.partitions or new.replication_factor:
        raise ClusterError(
            f"topic {new.name!r} has an assignment and also requests {new.partitions} partitions "
            f"and {new.replication_factor} replicas; with an assignment, both must be 0",
            ErrorCode.INVALID_REQUEST,
        )
    if len(new.assignment) > PARTITIONS_MAX:
        raise ClusterError(
            f"topic {new.name!r} assigns {len(new.assignment)} partitions, the limit is "
            f"{PARTITIONS_MAX}",
            ErrorCode.INVALID_PARTITIONS,
        )
    factor = len(new.assignment[0])
    for partition, replicas in enumerate(new.assignment):
        problem = ""
        unknown = sorted(set(replicas) - set(draft.cluster.brokers))
        cordoned = sorted(draft.cordoned_for_placement & set(replicas))
        if not replicas or len(replicas) != factor:
            problem = f"has {len(replicas)} replicas, but partition 0 has {factor}"
        elif len(set(replicas)) != len(replicas):
            problem = "names a broker twice"
        elif unknown:
            problem = f"names unknown brokers {listed(unknown)}"
        elif cordoned:
            problem = f"names cordoned brokers {listed(cordoned)}"
        elif liveness.staying.isdisjoint(replicas):
            problem = "has no replica on a live broker"
        if problem:
            raise ClusterError(
                f"assignment {listed(replicas)} of {new.name}/{partition} {problem}",
                ErrorCode.INVALID_REPLICATION_FACTOR,
            )


def _checked_config(
    draft: Draft, topic: str, configs: Mapping[str, str], factor: int
) -> TopicConfig:
    config = draft.config.topic_config(configs)
    check_configs(draft, configs)
    if "min.insync.replicas" in configs and config.min_insync_replicas > factor:
        raise ClusterError(
            f"min.insync.replicas is {config.min_insync_replicas}, but topic {topic!r} has "
            f"{factor} replicas, so that no acks=all write could succeed; it must be at most "
            f"{factor}",
            ErrorCode.INVALID_CONFIG,
        )
    return config


def _check_deletable(draft: Draft, topic: TopicDocument) -> None:
    if draft.topic_config(topic).deletion_protection:
        inherited = DELETION_PROTECTION not in topic.configs
        raise ClusterError(
            protected_text(topic.name, inherited=inherited), ErrorCode.DELETION_PROTECTED
        )


def _any_value(name: str) -> str:
    """A valid value, so that parsing it checks only whether the key exists."""
    return TopicConfig().to_mapping().get(name, "")


def _existing_topic(draft: Draft, name: str) -> TopicDocument:
    found = draft.topic(name)
    if found is None:
        raise _unknown_topic(name)
    return found


def _unknown_topic(name: str) -> ClusterError:
    return ClusterError(
        f"there is no topic {name!r}; check the name or create it", ErrorCode.UNKNOWN_TOPIC
    )

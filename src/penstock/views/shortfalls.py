"""Partitions with a problem: no leader, too few in-sync replicas to write, or a replica behind.

The judgement and its words are the same whether the partitions come from the controller's documents
on Kubernetes or from a broker's answer.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.core.topic import TopicConfig
from penstock.core.types import NO_LEADER
from penstock.errors import PenstockError
from penstock.views.findings import Finding, some

if TYPE_CHECKING:
    from penstock.client import ClusterDescription, TopicDescription

KINDS: Final = {
    "offline": "without a leader: no writes, no reads",
    "under_min_isr": "below min.insync.replicas: writes with acks=all are refused",
    "under_replicated": "with a replica that lags or is down: writes and reads continue",
}
"""By how bad they are, the worst first."""
_TO_DO: Final = {
    "offline": "bring back a broker whose replicas are in sync; no other way keeps every record",
    "under_min_isr": "bring back the brokers that are down; they catch up by themselves",
    "under_replicated": "nothing, if the brokers are back and catching up",
}


@dataclass(frozen=True, slots=True)
class Shortfall:
    """A partition with a problem. `kind`: one of KINDS; only the worst is named."""

    kind: str
    topic: str
    partition: int
    isr: tuple[int, ...]
    replicas: tuple[int, ...]
    min_isr: int

    @property
    def text(self) -> str:
        return f"{self.topic}/{self.partition}"


def min_isr_of(configs: Mapping[str, str], replicas: int) -> int:
    """How many replicas of a topic with these settings must be in sync for acks=all."""
    try:
        config = TopicConfig.parse(configs)
    except PenstockError:  # of a newer version
        config = TopicConfig()
    return config.effective_min_insync_replicas(replicas)


def judge(leader: int, isr: int, replicas: int, min_isr: int) -> str | None:
    """The kind of problem, by the numbers of replicas; None = there is none."""
    if leader == NO_LEADER:
        return "offline"
    if isr < min_isr:
        return "under_min_isr"
    return "under_replicated" if isr < replicas else None


def topic_shortfalls(topic: "TopicDescription") -> Iterator[Shortfall]:
    """By partition."""
    for one in topic.partitions:
        min_isr = min_isr_of(topic.configs, len(one.replicas))
        kind = judge(one.leader, len(one.isr), len(one.replicas), min_isr)
        if kind is not None:
            yield Shortfall(kind, topic.topic, one.partition, one.isr, one.replicas, min_isr)


def partition_findings(
    short: Sequence[Shortfall], reason: Callable[[int], str]
) -> Iterator[Finding]:
    """One per kind. `reason` says why a broker may not be in sync."""
    for kind, meaning in KINDS.items():
        found = [one for one in short if one.kind == kind]
        if not found:
            continue
        behind = sorted({broker for one in found for broker in set(one.replicas) - set(one.isr)})
        evidence = [f"broker {one} is not in sync: {reason(one)}" for one in behind]
        if kind == "under_min_isr":
            needs = max(one.min_isr for one in found)
            evidence.append(f"in sync: {min(len(one.isr) for one in found)} of {needs} needed")
        yield Finding(
            "1 partition" if len(found) == 1 else f"{len(found)} partitions",
            kind.replace("_", "-"),
            f"{meaning}: {some([one.text for one in found])}",
            evidence=tuple(evidence),
            do=_TO_DO[kind],
        )


def unnamed_findings(
    cluster: "ClusterDescription", named: Sequence[Shortfall]
) -> Iterator[Finding]:
    """The worst kind of which the cluster counts more partitions than are named: the caller may not
    see all topics, or they could not be read. One at most: the same partitions count as others."""
    counted = {
        "offline": (cluster.offline_partitions, [one.kind == "offline" for one in named]),
        "under_min_isr": (
            cluster.under_min_isr_partitions,
            [len(one.isr) < one.min_isr for one in named],
        ),
        "under_replicated": (
            cluster.under_replicated_partitions,
            [len(one.isr) < len(one.replicas) for one in named],
        ),
    }
    for kind, (count, seen) in counted.items():
        if (rest := count - sum(seen)) > 0:
            yield Finding(
                "1 partition" if rest == 1 else f"{rest} partitions",
                kind.replace("_", "-"),
                f"{KINDS[kind]}; not known here is which: you may not see all topics, or this has "
                "just changed",
                do="ask again, as somebody who may describe all topics",
            )
            return

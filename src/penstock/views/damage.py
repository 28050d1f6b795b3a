"""Damaged replicas, and logs that differ, as findings: what they mean, what is or can be done.

The controller's word says what is damaged, and who may lead; a broker's own says how far it is.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from penstock.core.control.damage import Damage, DamagedPartition, worst_first
from penstock.views.findings import NAMES_SHOWN, Finding

if TYPE_CHECKING:
    from penstock.client import LogDescription

PARTITION_DAMAGED: Final = "partition-damaged"
"""Some clients are not served, and a person may have to act."""
REPLICA_DAMAGED: Final = "replica-damaged"
LOGS_DIFFER: Final = "logs-differ"


def damage_findings(found: Sequence[DamagedPartition]) -> Iterator[Finding]:
    """One per partition, the worst first; how many more there are is in the last."""
    ordered = worst_first(found)
    for one in ordered[:NAMES_SHOWN]:
        code = REPLICA_DAMAGED if one.kind is Damage.MENDED else PARTITION_DAMAGED
        yield Finding(f"partition {one.name}", code, one.text, do=one.remedy or None)
    if len(ordered) > NAMES_SHOWN:
        more = f"{len(ordered) - NAMES_SHOWN} more partitions"
        yield Finding(more, REPLICA_DAMAGED, "have damaged replicas")


def mending_findings(brokers: "Mapping[int, LogDescription]") -> Iterator[Finding]:
    """By what brokers say of their own logs: how far the mending is, and what it waits for."""
    damaged = [
        (f"{log.topic}/{log.partition}", broker_id, log.mending)
        for broker_id, one in sorted(brokers.items())
        for log in one.logs
        if log.mending
    ]
    for name, broker_id, mending in damaged[:NAMES_SHOWN]:
        subject = f"the replica of {name} on broker {broker_id}"
        yield Finding(subject, REPLICA_DAMAGED, f"is damaged: {mending}", do=_TO_DO)
    if len(damaged) > NAMES_SHOWN:
        more = f"{len(damaged) - NAMES_SHOWN} more replicas"
        yield Finding(more, REPLICA_DAMAGED, "are damaged", do=_TO_DO)


def differing_findings(brokers: "Mapping[int, LogDescription]") -> Iterator[Finding]:
    """By what brokers found when they compared their logs with the leaders'."""
    differing = [
        (f"{log.topic}/{log.partition}", broker_id, log.differs)
        for broker_id, one in sorted(brokers.items())
        for log in one.logs
        if log.differs
    ]
    for name, broker_id, differs in differing[:NAMES_SHOWN]:
        subject = f"the replica of {name} on broker {broker_id}"
        what = f"differs from its leader's although both read well: {differs}"
        yield Finding(subject, LOGS_DIFFER, what, do=_DECIDE)
    if len(differing) > NAMES_SHOWN:
        more = f"{len(differing) - NAMES_SHOWN} more replicas"
        yield Finding(more, LOGS_DIFFER, "differ from their leaders'", do=_DECIDE)


_DECIDE: Final = (
    "penstock scrub status shows which replicas agree; have one with the right records lead, then "
    "move each odd one to another broker and back, or replace its volume where no broker is free: "
    "it is copied again"
)
_TO_DO: Final = "nothing while it goes on; for what nobody has: penstock partitions accept-loss"

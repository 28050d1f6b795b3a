"""Damaged replicas: which sentence, how bad, and what a person can do."""

from dataclasses import replace

import pytest

from penstock.client import LogDescription
from penstock.client.model import PartitionLog
from penstock.core.control.damage import Damage, DamagedPartition
from penstock.views.damage import damage_findings, differing_findings, mending_findings
from penstock.views.findings import NAMES_SHOWN

MENDED = DamagedPartition("t", 0, leader=2, isr=(2, 3), damaged=(1,))
LOG = PartitionLog("t", "id", 0, True, 1, 0, 10, 10, 100)


@pytest.mark.parametrize(
    ("found", "kind", "code", "says", "do"),
    [
        (MENDED, Damage.MENDED, "replica-damaged", "is mended from the others", None),
        (
            replace(MENDED, leader=-1, isr=(1, 2, 3)),
            Damage.WAITS,
            "partition-damaged",
            "waits for brokers 2, 3, which may have every record",
            "start brokers 2, 3",
        ),
        (
            replace(MENDED, leader=1, isr=(1,)),
            Damage.ALONE,
            "partition-damaged",
            "no sound one is in sync",
            "accept-loss",
        ),
        (replace(MENDED, leader=1, isr=(1, 2)), Damage.MENDED, "replica-damaged", "", None),
    ],
)
def test_how_bad_it_is(
    found: DamagedPartition, kind: Damage, code: str, says: str, do: str | None
) -> None:
    assert found.kind is kind
    (one,) = damage_findings([found])
    assert (one.subject, one.code) == ("partition t/0", code)
    assert says in one.what
    assert (one.do is None) == (do is None)
    assert (do or "") in (one.do or "")


def test_the_worst_come_first_and_the_rest_is_counted() -> None:
    many = [replace(MENDED, partition=at) for at in range(NAMES_SHOWN + 4)]
    findings = list(damage_findings([*many, replace(MENDED, topic="z", leader=1, isr=(1,))]))
    assert findings[0].subject == "partition z/0"
    assert len(findings) == NAMES_SHOWN + 1
    assert findings[-1].subject == "5 more partitions"


def test_brokers_say_how_far_mending_is() -> None:
    reading = replace(LOG, mending="its log is being read, offset 5 of 10")
    told = {0: LogDescription(0, (LOG,), 1, 2), 1: LogDescription(1, (reading,), 1, 2)}
    (one,) = mending_findings(told)
    assert one.subject == "the replica of t/0 on broker 1"
    assert one.what == "is damaged: its log is being read, offset 5 of 10"
    many = tuple(replace(reading, partition=at) for at in range(NAMES_SHOWN + 2))
    *_, last = mending_findings({1: LogDescription(1, many, 1, 2)})
    assert last.subject == "2 more replicas"


def test_brokers_say_which_logs_differ_and_a_person_has_to_decide() -> None:
    differs = replace(LOG, differs="offsets 0-9 are not as those of broker 0, which led")
    told = {0: LogDescription(0, (LOG,), 1, 2), 1: LogDescription(1, (differs,), 1, 2)}
    (one,) = differing_findings(told)
    assert (one.subject, one.code) == ("the replica of t/0 on broker 1", "logs-differ")
    assert one.what.endswith("both read well: offsets 0-9 are not as those of broker 0, which led")
    assert "move each odd one to another broker and back" in (one.do or "")
    many = tuple(replace(differs, partition=at) for at in range(NAMES_SHOWN + 2))
    *_, last = differing_findings({1: LogDescription(1, many, 1, 2)})
    assert last.subject == "2 more replicas"

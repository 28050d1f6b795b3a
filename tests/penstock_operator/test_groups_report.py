"""The status of a ConsumerGroup: what it says, and how seldom it is written."""

from pathlib import Path
from typing import Any

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.client import GroupDescription, GroupState, MemberDescription
from penstock.core.lag import PartitionLag
from penstock.core.manifest.objects import OffsetReset
from penstock.core.offset_reset import ResetKind
from penstock.core.types import TopicPartition
from penstock_operator.groups import reset
from penstock_operator.groups.model import GroupFacts, GroupResource, Lag, ScaleFacts, Seen
from penstock_operator.groups.observe import facts_of
from penstock_operator.groups.report import (
    SETTLE_MS,
    WRITE_EVERY_MS,
    group_status,
    scale_status,
    worth_writing,
)

ROOT = Path(__file__).parents[2]
NOW = "2026-01-01T00:00:00Z"
LONG_MS = 10 * SETTLE_MS


def resource(status: Any = None) -> GroupResource:
    metadata = {"name": "readers", "namespace": "default", "uid": "1", "generation": 4}
    return GroupResource({"metadata": metadata, "spec": {}, "status": status or {}})


def status_of(
    members: int = 0, records: int = 0, seconds: int = 0, before: Any = None
) -> dict[str, Any]:
    facts = GroupFacts("Stable" if members else "Empty", members, {}, Lag(records, seconds))
    seen = Seen(facts, scale=ScaleFacts(2, "1"))
    return group_status(resource(before), seen, [], "", NOW) | scale_status(seen, "")


def schema() -> dict[str, Any]:
    crd = yaml.safe_load((ROOT / "crds/consumergroups.yaml").read_text())
    found: dict[str, Any] = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return dict(found["properties"]["status"])


def unknown(value: Any, shape: dict[str, Any], where: str = "status") -> list[str]:
    """Paths that the API server would drop; each would be written again and again."""
    if isinstance(value, dict):
        known = shape.get("properties", {})
        paths = [f"{where}.{key}" for key in value if key not in known]
        for key in value.keys() & known.keys():
            paths += unknown(value[key], known[key], f"{where}.{key}")
        return paths
    if isinstance(value, list):
        return [path for each in value for path in unknown(each, shape["items"], f"{where}[]")]
    return []


def test_the_crd_keeps_every_field_of_the_status() -> None:
    asked = OffsetReset("one", ResetKind.EARLIEST)
    many = {TopicPartition("flights", each): (each, 0) for each in range(900)}
    record = reset.record_of(asked, many, NOW)
    shown = status_of(2, 5, 7) | reset.done(record, {}) | {"dryRun": record}
    assert unknown(shown, schema()) == []
    assert (
        len(record["offsets"])
        == schema()["properties"]["lastReset"]["properties"]["offsets"]["maxItems"]
    )
    assert (record["partitions"], record["offsetsBack"]) == (900, sum(range(900)))
    assert "895 more" in reset.told(record)


def test_ids_of_resets_are_bounded() -> None:
    limit = schema()["properties"]["resetIds"]["maxItems"]
    status: dict[str, Any] = {}
    for number in range(limit + 5):
        asked = OffsetReset(f"r{number}", ResetKind.LATEST)
        status |= reset.done(reset.record_of(asked, {}, NOW), status)
    assert status["resetIds"] == [f"r{number}" for number in range(5, limit + 5)]


def test_nobody_answers_is_told_apart_from_nothing_is_behind() -> None:
    known = status_of(3, 5, 7)
    silent = group_status(resource(known), Seen(), [], "", NOW)
    assert (silent["state"], silent["members"]) == ("Stable", 3)
    assert silent["lag"] is None


def test_a_stuck_group_is_written_ever_more_seldom() -> None:
    before = status_of(0, 100, 0)
    written, last_ms = [], 0
    for now_ms in range(0, 86_400_000, 10_000):
        after = status_of(0, 100, now_ms // 1_000, before)
        if worth_writing(before, after, now_ms - last_ms):
            written.append(now_ms)
            before, last_ms = after, now_ms
    assert 0 < len(written) < 80, "in a day, of 8,640 looks"


def test_a_few_seconds_are_noise() -> None:
    before = status_of(1, 50, 1)
    assert not worth_writing(before, status_of(1, 50, 10, before), LONG_MS)
    assert worth_writing(before, status_of(1, 50, 11, before), WRITE_EVERY_MS)


def test_small_changes_of_lag_are_written_when_things_have_rested() -> None:
    before = status_of(1, 1_000, 5)
    after = status_of(1, 1_005, 5, before)
    assert not worth_writing(before, after, WRITE_EVERY_MS)
    assert worth_writing(before, after, SETTLE_MS)
    assert worth_writing(before, status_of(1, 0, 0, before), WRITE_EVERY_MS)


def test_what_answers_a_person_is_written_at_once() -> None:
    before = status_of(1, 5, 5)
    assert not worth_writing(before, status_of(2, 5, 5, before), WRITE_EVERY_MS - 1)
    assert worth_writing(before, status_of(2, 5, 5, before), WRITE_EVERY_MS)
    assert worth_writing(before, {**before, "observedGeneration": 5}, 0)
    assert worth_writing(before, {**before, "pendingReset": {"id": "one"}}, 0)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 3), st.integers(0, 50), st.integers(0, 50), st.integers(1, 60_000)
        ),
        max_size=30,
    )
)
def test_writes_keep_their_distance_and_rest_is_exact(
    looks: list[tuple[int, int, int, int]],
) -> None:
    before, last_ms, now_ms = status_of(), 0, 0
    for members, records, seconds, after_ms in [*looks, *(looks[-1:] * 2)]:
        now_ms += after_ms
        after = status_of(members, records, seconds, before)
        if worth_writing(before, after, now_ms - last_ms):
            assert now_ms - last_ms >= WRITE_EVERY_MS
            before, last_ms = after, now_ms
    if looks:
        members, records, seconds, _ = looks[-1]
        after = status_of(members, records, seconds, before)
        if worth_writing(before, after, LONG_MS):
            before = after
        assert (before["members"], before["lag"]["records"]) == (members, records)
        assert not worth_writing(before, status_of(members, records, seconds, before), LONG_MS)


# ── Totals ────────────────────────────────────────────────────────────────────────────────


def group(*target: TopicPartition) -> GroupDescription:
    member = MemberDescription(
        "m", "", "", "", "", 1, "uniform", (), "", connected=True, assigned=(),
        pending_revocation=(), target=target,
    )  # fmt: skip
    return GroupDescription("g", GroupState.STABLE, 1, "uniform", 0, (member,))


A, B, OLD = (TopicPartition(name, 0) for name in ("a", "b", "old"))


def test_lag_is_known_only_if_all_of_it_is() -> None:
    behind, bare = PartitionLag(2, 0, 9, 7, 4_000), PartitionLag(-1, 0, 9, None, None)
    known = facts_of(group(A), {A: behind})
    assert known.lag == Lag(7, 4)
    part = facts_of(group(A, B), {A: behind, B: bare})
    assert part.lag is None
    assert part.backlog is None
    assert part.lag_problem == "no offset is committed in 1 of 2 partitions"
    slow = facts_of(group(A), {A: PartitionLag(2, 0, 9, 7, None)})
    assert slow.lag is None
    assert "the age of its records is unknown" in slow.lag_problem


def test_a_partition_without_records_has_no_lag_wherever_its_reader_begins() -> None:
    empty = PartitionLag(-1, 3, 3, None, None)
    assert facts_of(group(A), {A: empty}).lag == Lag(0, 0)


def test_a_topic_that_is_no_longer_read_asks_for_no_consumers() -> None:
    lags = {A: PartitionLag(2, 0, 9, 7, 4_000), OLD: PartitionLag(0, 0, 500, 500, 9_000)}
    seen = facts_of(group(A), lags)
    assert (seen.reading, seen.backlog) == (1, 7)
    assert seen.lag == Lag(507, 9), "but it is shown"

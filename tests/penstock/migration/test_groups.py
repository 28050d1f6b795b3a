"""A group's offset is the same record in the copy, also when the source has lost some since."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from support.copied import MemoryEnd, Row, row

from penstock.core.types import TopicPartition
from penstock.migration import model
from penstock.migration.copying import Copy
from penstock.migration.groups import translated
from penstock.migration.model import Progress, Topic
from penstock.migration.plan import Spread, into_penstock
from penstock.migration.run import Migration

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
TOPIC = Topic(name="t", partitions=2, replicas=1)
SOME: list[Row | None] = [row(f"v{index}", b"k") for index in range(10)]
GAPS: list[Row | None] = [None, *SOME[:3], None, None, *SOME[3:], None]


def ends(**logs: Sequence[Row | None]) -> tuple[MemoryEnd, MemoryEnd]:
    source, into = MemoryEnd(), MemoryEnd()
    for end in (source, into):
        end.create(TOPIC)
    for name, entries in logs.items():
        source.logs[TopicPartition("t", "ab".index(name))].entries = list(entries)
    return source, into


def copied(source: MemoryEnd, into: MemoryEnd) -> Copy:
    copy = Copy(source, into, [A, B])
    copy.begin()
    assert copy.run(follow=False, stop=lambda: False, report=lambda _: None)
    return copy


def exact(offset: int) -> int:
    return sum(entry is not None for entry in GAPS[:offset])


def test_offsets_of_a_group_count_records_and_not_gaps() -> None:
    source, into = ends(a=GAPS, b=SOME)
    copy = copied(source, into)
    for offset in range(len(GAPS) + 1):
        (moved,) = translated(source, into, {A: offset}, copy.progress)
        assert moved.target == exact(offset), offset
    assert [each.target for each in translated(source, into, {B: 4}, copy.progress)] == [4]


def test_an_offset_that_the_copy_has_not_passed_waits() -> None:
    source, into = ends(a=SOME[:3])
    copy = copied(source, into)
    source.logs[A].entries += SOME[3:]
    assert [each.target for each in translated(source, into, {A: 5}, copy.progress)] == [-1]
    behind = replace(copy.progress[A], target_first=7, source_first=2)
    assert [each.target for each in translated(source, into, {A: 1}, {A: behind})] == [7]


def test_a_source_that_was_compacted_since_leaves_nothing_out() -> None:
    source, into = ends(a=GAPS)
    copy = copied(source, into)
    for gone in (7, 8, 9):
        source.logs[A].entries[gone] = None
    for offset in range(len(GAPS) + 1):
        (moved,) = translated(source, into, {A: offset}, copy.progress)
        assert exact(offset) - 3 <= moved.target <= exact(offset), offset
        if offset >= 10:
            assert moved.target == exact(offset), "found at the target's end"


@pytest.mark.parametrize("first", [3, 7, 10, len(GAPS)])
def test_retention_that_has_passed_a_group_leaves_nothing_out(first: int) -> None:
    """Also where the source has nothing left."""
    source, into = ends(a=GAPS)
    copy = copied(source, into)
    source.logs[A].entries[:first] = [None] * first
    source.logs[A].first = first
    for offset in range(len(GAPS) + 1):
        (moved,) = translated(source, into, {A: offset}, copy.progress)
        assert exact(offset) - 3 <= moved.target <= exact(offset), offset
        if offset >= first and first < len(GAPS) - 1 and offset not in {4, 5}:
            assert moved.target == exact(offset), offset


def test_retention_at_the_target_does_not_leave_a_group_before_its_log() -> None:
    source, into = ends(a=GAPS)
    copy = copied(source, into)
    into.logs[A].first = 4
    found = translated(source, into, {A: 2}, copy.progress)
    assert [each.target for each in found] == [4]


def test_marks_tell_what_the_source_no_longer_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every second offset is a gap, and then the source has lost all but its end."""
    monkeypatch.setattr(model, "MARK_RECORDS", 2)
    entries = [entry for number in range(100) for entry in (row(f"{number}"), None)]
    source, into = ends(a=entries)
    copy = copied(source, into)
    source.logs[A].entries[:198] = [None] * 198
    source.logs[A].first = 198
    apart = 100 // model.MARKS_MAX + 6  # polls bring three offsets
    for offset in range(201):
        (moved,) = translated(source, into, {A: offset}, copy.progress)
        assert -apart <= moved.target - (offset + 1) // 2 <= 0, offset


def test_marks_are_few_and_none_is_needed_without_gaps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "MARK_RECORDS", 1)
    plain = Progress(source_first=5, source_next=5, target_first=0, target_next=0)
    gaps = plain
    for _ in range(2_000):
        plain = replace(plain, source_next=plain.source_next + 3,
                        target_next=plain.target_next + 3, marks=plain.marked())  # fmt: skip
        gaps = replace(gaps, source_next=gaps.source_next + 4,
                       target_next=gaps.target_next + 3, marks=gaps.marked())  # fmt: skip
    assert len(plain.marks) == 2
    assert model.MARKS_MAX // 2 <= len(gaps.marks) <= model.MARKS_MAX
    assert list(gaps.marks) == sorted(gaps.marks)
    assert gaps.marks[0] == (5, 0)
    assert Progress.parse(gaps.serialise()) == gaps


def test_a_group_that_is_further_here_stays_there() -> None:
    """Its consumers have changed over, and the command is repeated."""
    source, into = ends(a=SOME, b=SOME)
    source.groups["g"] = {A: 4, B: 4}
    into.groups["g"] = {A: 6, B: 2}
    migration = Migration(
        source, into, lambda _: "", lambda topic: into_penstock(topic, Spread.UNKNOWN)
    )
    done = migration.execute(
        migration.prepare(["t"]), follow=False, stop=lambda: False, report=lambda _: None
    )
    assert [(each.target, each.here) for each in done.move_group("g")] == [(4, 6), (4, -1)]
    assert into.groups["g"] == {A: 6, B: 4}
    assert [each.here for each in done.move_group("g")] == [6, 4]
    source.groups["ahead"] = {A: 99}
    assert [(each.target, each.here) for each in done.move_group("ahead")] == [(-1, -1)]

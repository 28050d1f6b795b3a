"""A copy has each record once, whatever ended the run before; foreign records stop it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from support.copied import Appended, MemoryEnd, Row, row

from penstock.core.types import TopicPartition
from penstock.errors import ClusterError, ErrorCode
from penstock.migration import copying, reading
from penstock.migration.copying import Copy
from penstock.migration.groups import translated
from penstock.migration.model import Bounds, Progress, Rows, Topic
from penstock.migration.plan import Spread, into_penstock, is_held
from penstock.migration.reading import CopyError
from penstock.migration.run import Migration
from penstock.migration.verifying import verdicts

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
TOPIC = Topic(name="t", partitions=2, replicas=1)


class KilledError(Exception):
    """The copying process ends here."""


def source_of(**logs: Sequence[Row | None]) -> MemoryEnd:
    source = MemoryEnd()
    source.create(TOPIC)
    for name, entries in logs.items():
        source.logs[TopicPartition("t", "ab".index(name))].entries = list(entries)
    return source


def target() -> MemoryEnd:
    made = MemoryEnd()
    made.create(TOPIC)
    return made


def begun(source: MemoryEnd, into: MemoryEnd) -> Copy:
    copy = Copy(source, into, [A, B])
    copy.begin()
    return copy


def copied(source: MemoryEnd, into: MemoryEnd) -> Copy:
    copy = begun(source, into)
    assert copy.run(follow=False, stop=lambda: False, report=lambda _: None)
    return copy


SOME = [row(f"v{index}", b"k", [("h", b"1"), ("n", None)]) for index in range(10)]


def test_every_record_is_there_once_in_order_and_gaps_are_not() -> None:
    gaps = [None, *SOME[:3], None, None, *SOME[3:], None]
    source, into = source_of(a=gaps, b=SOME), target()
    copy = copied(source, into)
    assert into.logs[A].entries == SOME
    assert into.logs[B].entries == SOME
    assert copy.progress[A].source_next == len(gaps)
    assert (copy.progress[A].records, copy.progress[B].records) == (10, 10)
    assert all(each.good for each in verdicts(into, copy.progress, lambda _: None))


@pytest.mark.parametrize("appends", range(1, 8))
@pytest.mark.parametrize("stores", [False, True])
def test_a_run_continues_one_that_was_killed(appends: int, stores: bool) -> None:
    """Before or after it stored how far it was."""
    source, into = source_of(a=[None, *SOME[:4], None, *SOME[4:]], b=list(SOME)), target()
    left = [appends]

    def kill(where: TopicPartition, rows: Rows) -> None:
        del where, rows
        left[0] -= 1
        if left[0] < 0:
            raise KilledError

    into.on_append = kill
    store = into.store
    if not stores:
        into.store = lambda progress: None  # type: ignore[method-assign]
    with pytest.raises(KilledError):
        copied(source, into)
    into.on_append = lambda _w, _r: None
    into.store = store  # type: ignore[method-assign]
    copy = copied(source, into)
    assert into.logs[A].entries == SOME
    assert into.logs[B].entries == SOME
    assert all(each.good for each in verdicts(into, copy.progress, lambda _: None))


def test_new_records_of_the_source_are_copied_by_the_next_run() -> None:
    source, into = source_of(a=SOME[:3]), target()
    copied(source, into)
    source.logs[A].entries += SOME[3:]
    copied(source, into)
    assert into.logs[A].entries == SOME


def test_records_of_somebody_else_before_the_next_run_are_found() -> None:
    source, into = source_of(a=SOME[:3]), target()
    copied(source, into)
    into.logs[A].entries.append(row("foreign"))
    source.logs[A].entries += SOME[3:]
    with pytest.raises(
        CopyError,
        match=r"t/0 has 1 records from 3 on that are not the source's.* do not run it again",
    ):
        begun(source, into)


def test_records_of_somebody_else_during_the_copy_are_found() -> None:
    source, into = source_of(a=list(SOME)), target()

    def intrude(where: TopicPartition, rows: Rows) -> None:
        if rows.offsets[0] > 0:
            into.logs[where].entries.append(row("foreign"))

    into.on_append = intrude
    with pytest.raises(CopyError, match=r"somebody else writes to the topic.* do not run it again"):
        copied(source, into)


def test_a_target_that_lost_records_is_refused() -> None:
    source, into = source_of(a=SOME[:3]), target()
    copied(source, into)
    into.logs[A].entries.pop()
    with pytest.raises(CopyError, match="ends at 2, and 3 was reached before"):
        begun(source, into)


def test_what_comes_behind_the_copy_is_not_compared() -> None:
    source, into = source_of(a=list(SOME)), target()
    copy = copied(source, into)
    into.logs[A].entries.append(row("written by a producer here"))
    assert verdicts(into, copy.progress, lambda _: None)[0].same


@pytest.mark.parametrize("change", ["value", "order", "lost", "doubled"])
def test_a_copy_that_differs_is_seen(change: str) -> None:
    source, into = source_of(a=list(SOME)), target()
    copy = copied(source, into)
    entries = into.logs[A].entries
    if change == "value":
        entries[4] = row("other", b"k")
    elif change == "order":
        entries[4], entries[5] = entries[5], entries[4]
    elif change == "lost":
        del entries[4]
    else:
        entries.insert(4, entries[4])
    verdict = verdicts(into, copy.progress, lambda _: None)[0]
    assert (verdict.where, verdict.good) == (A, False)


def test_what_retention_removed_is_not_judged() -> None:
    source, into = source_of(a=list(SOME)), target()
    copy = copied(source, into)
    into.logs[A].first = 2
    verdict = verdicts(into, copy.progress, lambda _: None)[0]
    assert (verdict.expired, verdict.same, verdict.good) == (True, False, True)


@pytest.mark.parametrize("first", [5, 10])
def test_a_run_continues_on_a_target_whose_retention_has_run(first: int) -> None:
    """Before it stored how far it was."""
    source, into = source_of(a=list(SOME)), target()
    into.strict = True
    store, into.store = into.store, lambda progress: None  # type: ignore[method-assign]
    copied(source, into)
    into.store = store  # type: ignore[method-assign]
    into.stored[A] = Progress(source_first=0, source_next=0, target_first=0, target_next=0)
    into.logs[A].first = first
    source.logs[A].entries.append(row("new"))
    copy = copied(source, into)
    assert into.logs[A].entries == [*SOME, row("new")]
    assert copy.progress[A].records == 11


def test_what_retention_removes_while_it_is_compared_is_not_judged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source, into = source_of(a=list(SOME), b=list(SOME)), target()
    copy = copied(source, into)
    into.strict = True
    read = into.read

    def late(starts: Mapping[TopicPartition, int]) -> Any:
        into.logs[A].first = 2
        return read(starts)

    into.read = late  # type: ignore[method-assign]
    found = verdicts(into, copy.progress, lambda _: None)
    assert [(each.expired, each.same) for each in found] == [(True, False), (False, True)]
    monkeypatch.setattr(into, "bounds", lambda wheres: dict.fromkeys(wheres, Bounds(0, 10)))
    with pytest.raises(ClusterError, match="t/0 begins at 2"):
        verdicts(into, copy.progress, lambda _: None)


def test_an_end_before_the_one_at_the_beginning_is_none() -> None:
    """A leader that has just been elected shows fewer records than were committed, for a while."""
    source, into = source_of(a=list(SOME)), target()
    source.shown = 4
    polls = [0]

    def catch_up() -> bool:
        polls[0] += 1
        source.shown = None if polls[0] > 5 else 4
        return False

    assert begun(source, into).run(follow=False, stop=catch_up, report=lambda _: None)
    assert into.logs[A].entries == SOME


def test_a_source_that_falls_silent_ends_the_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "QUIET_S", 0.0)
    source, into = source_of(a=list(SOME)), target()
    source.shown = 4
    copy = begun(source, into)
    with pytest.raises(CopyError, match=r"no records came for 0 s from memory; .* continues"):
        copy.run(follow=False, stop=lambda: False, report=lambda _: None)
    source.shown = None
    copied(source, into)
    assert into.logs[A].entries == SOME


def test_a_copy_that_follows_goes_on_to_the_end_once_it_is_told_to_stop() -> None:
    source, into = source_of(a=SOME, b=SOME), target()
    assert begun(source, into).run(follow=True, stop=lambda: True, report=lambda _: None)
    assert into.logs[A].entries == into.logs[B].entries == SOME


def test_a_copy_that_follows_does_not_wait_for_an_end_that_does_not_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(copying, "FINISH_S", 0.1)
    source, into = source_of(a=list(SOME)), target()
    source.shown = 4
    assert not begun(source, into).run(follow=True, stop=lambda: True, report=lambda _: None)
    assert into.logs[A].entries == SOME[:4], "it went on for that long"


def test_the_end_is_the_one_that_the_source_has_when_it_is_told_to_stop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The copy had come to an end before; what was written since was not read yet."""
    monkeypatch.setattr(copying, "FINISH_S", 0.0)
    source, into = source_of(a=SOME[:4]), target()
    source.shown = 4

    def stop() -> bool:
        if len(into.logs[A].entries) < 4:
            return False
        source.logs[A].entries[4:] = SOME[4:]
        return True

    assert not begun(source, into).run(follow=True, stop=stop, report=lambda _: None)
    assert into.logs[A].entries == SOME[:4]


@pytest.mark.parametrize("stops", [False, True])
def test_a_source_that_is_away_does_not_count_as_ended(
    stops: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At Ctrl-C, and while it is followed."""
    monkeypatch.setattr(reading, "QUIET_S", 0.0)
    source, into = source_of(a=list(SOME)), target()
    copy = begun(source, into)

    def away(partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Bounds]:
        raise ClusterError(f"{next(iter(partitions)).topic} is away", ErrorCode.UNREACHABLE)

    source.bounds = away  # type: ignore[method-assign]
    with pytest.raises(ClusterError, match="t is away"):
        copy.run(follow=True, stop=lambda: stops, report=lambda _: None)


def test_the_end_counts_though_records_are_in_flight() -> None:
    """A group that has read everything is at the end, behind the marker of the last transaction."""
    source, into = source_of(a=[*SOME[:3], None]), target()
    source.limit = 3
    waits = [True]

    class Slow(Appended):
        def done(self) -> bool:
            return not waits[0]

        def base_offset(self) -> int:
            waits[0] = False
            return super().base_offset()

    append = into.append
    into.append = lambda where, rows: Slow(append(where, rows).base_offset())  # type: ignore[method-assign]
    copy = copied(source, into)
    assert copy.progress[A].source_next == 4
    assert [each.target for each in translated(source, into, {A: 4}, copy.progress)] == [3]


def test_a_run_continues_on_a_target_that_was_compacted_meanwhile() -> None:
    source, into = source_of(a=list(SOME)), target()
    store, into.store = into.store, lambda progress: None  # type: ignore[method-assign]
    copied(source, into)
    into.store = store  # type: ignore[method-assign]
    into.logs[A].entries[2:7] = [None] * 5
    source.logs[A].entries.append(row("new"))
    copy = copied(source, into)
    assert into.logs[A].entries == [*SOME[:2], *[None] * 5, *SOME[7:], row("new")]
    assert copy.progress[A].records == 11


def test_a_topic_is_not_compacted_before_it_was_compared() -> None:
    wanted = {"cleanup.policy": "compact", "max.compaction.lag.ms": "60000"}
    source, into = MemoryEnd(), MemoryEnd()
    source.create(replace(TOPIC, configs=wanted))
    source.logs[A].entries = list(SOME)
    migration = Migration(
        source, into, lambda _: "", lambda topic: into_penstock(topic, Spread.UNKNOWN)
    )
    done = migration.execute(
        migration.prepare(["t"]), follow=False, stop=lambda: False, report=lambda _: None
    )
    assert is_held(into.known["t"])
    assert "max.compaction.lag.ms" not in into.known["t"].configs
    done.release()
    found = dict(into.known["t"].configs)
    del found["max.message.bytes"]
    assert found == wanted | {"message.timestamp.type": "CreateTime"}
    into.logs[A].entries[4] = None
    assert [each.good for each in done.verify(lambda _: None)] == [True, True]
    into.alter("t", {"cleanup.policy": None})
    assert [each.good for each in done.verify(lambda _: None)] == [False, True]

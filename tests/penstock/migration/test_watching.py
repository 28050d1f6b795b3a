"""A copy is of the topics that it began with: others of the same names are not taken for them."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from support.copied import MemoryEnd, Row, row

from penstock.core.types import TopicPartition
from penstock.errors import ClusterError, ErrorCode, MisuseError
from penstock.migration import copying, reading
from penstock.migration.copying import Copy
from penstock.migration.model import Topic
from penstock.migration.plan import Action, Spread, into_penstock
from penstock.migration.reading import CopyError
from penstock.migration.run import Migration
from penstock.migration.watching import Watch

A = TopicPartition("t", 0)
TOPIC = Topic(name="t", partitions=1, replicas=1)
SOME: list[Row | None] = [row(f"v{index}") for index in range(10)]


def ends() -> tuple[MemoryEnd, MemoryEnd]:
    source, into = MemoryEnd(), MemoryEnd()
    source.create(TOPIC)
    source.logs[A].entries = SOME[:4]
    return source, into


def migration_of(source: MemoryEnd, into: MemoryEnd) -> Migration:
    return Migration(source, into, lambda _: "", lambda topic: into_penstock(topic, Spread.UNKNOWN))


def migrate(
    source: MemoryEnd, into: MemoryEnd, meanwhile: Callable[[], object] = lambda: None
) -> None:
    """`meanwhile` happens once records were copied."""
    migration = migration_of(source, into)
    happened: list[bool] = []

    def stop() -> bool:
        if into.logs[A].entries and not happened:
            happened.append(True)
            meanwhile()
        return bool(happened)

    done = migration.execute(
        migration.prepare(["t*"]), follow=True, stop=stop, report=lambda _: None, patterns=["t*"]
    )
    assert done.complete


def again(source: MemoryEnd) -> None:
    """With more records than there were."""
    source.create(TOPIC)
    source.logs[A].entries = [row("another"), *SOME]


def test_a_topic_that_was_created_again_is_refused_by_the_next_run() -> None:
    source, into = ends()
    migrate(source, into)
    again(source)
    (plan,) = migration_of(source, into).prepare(["t"])
    assert plan.action is Action.REFUSED
    assert "was deleted and created again since it was copied" in plan.reason
    with pytest.raises(CopyError, match="topic 't': the source's topic was deleted and"):
        Copy(source, into, [A]).begin()


def test_progress_of_a_copy_that_knew_no_ids_goes_on() -> None:
    source, into = ends()
    migrate(source, into)
    into.stored[A] = replace(into.stored[A], topic_id="", last_offset=-1)
    source.logs[A].entries += SOME[4:]
    migrate(source, into)
    assert into.logs[A].entries == SOME
    assert into.stored[A].topic_id == source.known["t"].topic_id


def test_a_source_that_lost_records_and_got_others_is_refused() -> None:
    source, into = ends()
    migrate(source, into)
    source.logs[A].entries = [*SOME[:3], row("other"), *SOME[4:]]
    with pytest.raises(CopyError, match="t/0, offset 3 is not the record that was copied"):
        Copy(source, into, [A]).begin()
    source.logs[A].entries[3] = None
    Copy(source, into, [A]).begin()
    source.logs[A].entries = SOME[:2]
    with pytest.raises(CopyError, match="the source ends at 2, and 4 was reached before"):
        Copy(source, into, [A]).begin()


def test_a_topic_that_is_created_again_during_the_copy_is_said() -> None:
    source, into = ends()
    with pytest.raises(CopyError, match=r"copy not complete: .* deleted and created again"):
        migrate(source, into, lambda: again(source))


def test_a_topic_that_is_deleted_during_the_copy_is_said() -> None:
    source, into = ends()
    source.create(replace(TOPIC, name="t2"))
    with pytest.raises(CopyError, match="copy not complete: memory has no topic 't' any more"):
        migrate(source, into, lambda: source.known.pop("t"))
    source, into = ends()
    with pytest.raises(MisuseError, match=r"has no topic 't\*'"):
        migrate(source, into, lambda: source.known.pop("t"))


def test_partitions_and_topics_that_come_are_said() -> None:
    source, into = ends()

    def grow() -> None:
        source.known["t"] = replace(source.known["t"], partitions=4)

    with pytest.raises(
        CopyError, match=r"t has 4 partitions at memory, 1 were copied; .* t --partitions 4`"
    ):
        migrate(source, into, grow)
    source, into = ends()

    def more() -> None:
        for name in ("t1", "t2"):
            source.create(replace(TOPIC, name=name))

    with pytest.raises(CopyError, match="has more topics that match by now: t1, t2; the same"):
        migrate(source, into, more)


@pytest.mark.parametrize("quiet_s", [0.0, 60.0])
def test_a_source_that_is_away_may_come_back(
    quiet_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "WATCH_S", 0.0)
    source, into = ends()
    into.create(TOPIC)
    copy, looks = Copy(source, into, [A]), [0]
    copy.begin()

    def watch() -> None:
        looks[0] += 1
        if looks[0] == 2:
            monkeypatch.setattr(reading, "QUIET_S", quiet_s)
            raise ClusterError("away", ErrorCode.UNREACHABLE)

    def run() -> bool:
        return copy.run(follow=True, stop=lambda: looks[0] > 3, report=lambda _: None, watch=watch)

    if quiet_s:
        assert run()
    else:
        with pytest.raises(ClusterError, match="away"):
            run()


def test_a_refusal_by_the_source_does_not_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "WATCH_S", 0.0)
    source, into = ends()
    into.create(TOPIC)
    copy = Copy(source, into, [A])
    copy.begin()
    watch = Watch(source, into, ["t"], {"t": source.known["t"]})
    again(source)
    with pytest.raises(CopyError, match="created again"):
        copy.run(follow=True, stop=lambda: False, report=lambda _: None, watch=watch)


def test_a_copy_is_not_complete_while_records_wait_behind_a_transaction() -> None:
    source, into = ends()
    source.waits[A] = 7
    migration = migration_of(source, into)
    done = migration.execute(
        migration.prepare(["t"]), follow=False, stop=lambda: False, report=lambda _: None
    )
    assert (done.complete, done.waiting) == (False, {A: 7})

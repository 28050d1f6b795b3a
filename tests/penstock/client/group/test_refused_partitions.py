"""Offsets that a coordinator refuses for now: sent, or asked for, again until the time is up.

The coordinator is scripted: per request, the partitions that it refuses, and with which code.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.waiting import wait_until_async

from penstock.client.cluster import coordinator
from penstock.client.cluster.cluster import Cluster
from penstock.client.config import ConsumerConfig
from penstock.client.consumer import commits
from penstock.client.consumer.assignment import Assignment
from penstock.client.consumer.commits import Committer, MemberIdentity
from penstock.client.consumer.fetch_state import FetchState
from penstock.client.group.commit_queue import Offsets
from penstock.client.group.coordinator import GroupCalls
from penstock.client.group.model import OffsetAndMetadata
from penstock.client.model import TopicDescription
from penstock.client.tasks import BackgroundTasks
from penstock.core.limits import (
    COMMIT_METADATA_MAX_BYTES,
    COMMIT_METADATA_SUM_MAX,
    COMMIT_PARTITIONS_MAX,
)
from penstock.core.types import TopicPartition
from penstock.errors import ClusterError, ErrorCode, PenstockError, UnreachableError
from penstock.proto.v1 import group_pb2 as pb
from penstock.rpc.errors import error_to_wire

P, Q = TopicPartition("t", 0), TopicPartition("t", 1)
FOR_NOW = [ErrorCode.UNKNOWN_TOPIC, ErrorCode.UNKNOWN_PARTITION, ErrorCode.UNSTABLE_OFFSETS]
Refusals = Mapping[TopicPartition, ErrorCode]


class Member:
    """A consumer without membership."""

    def identity(self) -> MemberIdentity:
        return MemberIdentity()


class Joined:
    """A member of the group."""

    def identity(self) -> MemberIdentity:
        return MemberIdentity("m", 3)


class Coordinator(GroupCalls):
    """Answers by `script`, and refuses nothing once that has ended."""

    def __init__(self, config: ConsumerConfig) -> None:
        super().__init__(Cluster(("h:1",), config), "g")
        self._commits = cast("Any", self)
        self.script: Iterator[Refusals | PenstockError] = iter(())
        self.commits: list[dict[TopicPartition, int]] = []
        self.epochs: list[int] = []
        """Rewind epochs of what was committed."""
        self.topic_ids: list[str] = []
        self.known = OffsetAndMetadata(7)
        """What it tells of every partition."""
        self.fetches = 0

    async def connection(self, timeout_s: float) -> Any:
        return self

    @property
    def group(self) -> Any:
        """Of the connection: its stub."""
        return self

    FetchOffsets = None

    async def call(self, method: Any, request: Any, timeout_s: float, more: Any = None) -> Any:
        """Of the connection."""
        self.fetches += 1
        refused = self._next()
        return pb.FetchOffsetsResponse(
            offsets=[
                pb.CommittedOffset(
                    topic=part.topic,
                    partition=part.partition,
                    offset=self.known.offset,
                    rewind_epoch=self.known.rewind_epoch,
                    error=_error(refused, TopicPartition(part.topic, part.partition)),
                )
                for part in request.partitions
            ]
        )

    async def ask(self, connection: Any, request: pb.CommitOffsetsRequest, timeout_s: float) -> Any:
        """Of the stream of commits."""
        sent = {TopicPartition(one.topic, one.partition): one.offset for one in request.partitions}
        self.commits.append(sent)
        self.epochs += [one.rewind_epoch for one in request.partitions]
        self.topic_ids += [one.topic_id for one in request.partitions]
        refused = self._next()
        return pb.CommitOffsetsResponse(
            results=[
                pb.CommitResult(
                    topic=where.topic, partition=where.partition, error=_error(refused, where)
                )
                for where in sent
            ]
        )

    def _next(self) -> Refusals:
        found = next(self.script, {})
        if isinstance(found, PenstockError):
            raise found
        return found


def _error(refused: Refusals, where: TopicPartition) -> Any:
    code = refused.get(where)
    return None if code is None else error_to_wire(ClusterError("scripted", code))


class Scene:
    """A committer and its coordinator."""

    def __init__(self, tasks: BackgroundTasks, **settings: Any) -> None:
        config = ConsumerConfig(
            group_id="g", retry_backoff_ms=1, retry_backoff_max_ms=1, **settings
        )
        self.coordinator = Coordinator(config)
        self.stored: dict[TopicPartition, int] = {}
        self.committer = Committer(
            self.coordinator._cluster,
            self.coordinator,
            config,
            cast("Assignment", self),
            cast("Any", Member()),
            tasks,
        )
        self.states: dict[TopicPartition, Any] = {}
        self.done: dict[TopicPartition, OffsetAndMetadata] = {}

    def committed(self, where: TopicPartition, commit: OffsetAndMetadata) -> None:
        """Of the assignment."""
        self.stored[where] = commit.offset

    def unchanged(self, *, only_done: bool) -> dict[TopicPartition, OffsetAndMetadata]:
        """Of the assignment."""
        return {}

    def may_be_sent(self, offsets: Offsets) -> Offsets:
        """Of the assignment."""
        return offsets

    def to_commit(self, *, only_done: bool) -> dict[TopicPartition, OffsetAndMetadata]:
        """Of the assignment."""
        return self.done

    def script(self, *answers: Refusals | PenstockError, for_ever: Refusals | None = None) -> None:
        def told() -> Iterator[Refusals | PenstockError]:
            yield from answers
            while for_ever is not None:
                yield for_ever

        self.coordinator.script = told()


@asynccontextmanager
async def scene(**settings: Any) -> AsyncIterator[Scene]:
    tasks = BackgroundTasks("test", lambda _: None)
    await tasks.start()
    try:
        yield Scene(tasks, **settings)
    finally:
        await tasks.aclose()


def offsets(**wanted: int) -> dict[TopicPartition, OffsetAndMetadata]:
    where = {"p": P, "q": Q}
    return {where[name]: OffsetAndMetadata(offset) for name, offset in wanted.items()}


@pytest.mark.parametrize("code", FOR_NOW)
async def test_only_what_was_refused_for_now_is_committed_again(code: ErrorCode) -> None:
    async with scene() as here:
        here.script({Q: code}, {Q: code})
        await here.committer.commit(offsets(p=3, q=5))
        assert here.coordinator.commits == [{P: 3, Q: 5}, {Q: 5}, {Q: 5}]
        assert here.stored == {P: 3, Q: 5}


async def test_a_commit_of_more_partitions_than_a_coordinator_takes_is_sent_in_parts() -> None:
    many = [TopicPartition("t", number) for number in range(COMMIT_PARTITIONS_MAX + 2)]
    last = many[-1]
    async with scene() as here:
        here.script({}, {last: ErrorCode.UNKNOWN_TOPIC})
        await here.committer.commit(dict.fromkeys(many, OffsetAndMetadata(7)))
        sizes = [len(sent) for sent in here.coordinator.commits]
        assert sizes == [COMMIT_PARTITIONS_MAX, 2, 1]
        assert here.stored == dict.fromkeys(many, 7)

        here.script({}, ClusterError("no", ErrorCode.INVALID_REQUEST))
        with pytest.raises(ClusterError, match="no"):
            await here.committer.commit(dict.fromkeys(many, OffsetAndMetadata(8)))
        assert len(here.coordinator.commits) == 5


async def test_metadata_that_is_too_long_for_one_call_is_sent_in_parts() -> None:
    fits = COMMIT_METADATA_SUM_MAX // COMMIT_METADATA_MAX_BYTES
    many = [TopicPartition("t", number) for number in range(fits + 1)]
    text = "\u00e4" * (COMMIT_METADATA_MAX_BYTES // 2)
    async with scene() as here:
        await here.committer.commit(dict.fromkeys(many, OffsetAndMetadata(7, text)))
        assert [len(sent) for sent in here.coordinator.commits] == [fits, 1]


async def test_a_commit_that_is_refused_until_its_time_is_up_fails_with_the_last_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with scene(request_timeout_ms=30_000) as here:
        monkeypatch.setattr(commits, "loop_time_s", lambda: 10.0 * len(here.coordinator.commits))
        first = {P: ErrorCode.UNSTABLE_OFFSETS}
        here.script(first, first, for_ever={P: ErrorCode.UNKNOWN_TOPIC})
        with pytest.raises(ClusterError, match="t/0: scripted") as refused:
            await here.committer.commit(offsets(p=3, q=5))
        assert refused.value.code is ErrorCode.UNKNOWN_TOPIC
        assert here.coordinator.commits == [{P: 3, Q: 5}, {P: 3}, {P: 3}]
        assert here.stored == {Q: 5}


async def test_a_commit_whose_task_ends_before_its_first_step_is_answered() -> None:
    seen: list[PenstockError | None] = []
    async with scene() as here:
        here.committer.start(offsets(p=3), seen.append)
        (sending,) = (one for one in asyncio.all_tasks() if one.get_name().endswith("commits"))
        sending.cancel()
        await wait_until_async(lambda: bool(seen), what="the callback is told")
    assert seen[0] is not None
    assert seen[0].code is ErrorCode.CLOSED
    assert here.coordinator.commits == []


async def test_a_commit_that_is_refused_for_good_is_not_sent_again() -> None:
    async with scene() as here:
        here.script({P: ErrorCode.OFFSET_WENT_BACK})
        with pytest.raises(ClusterError) as refused:
            await here.committer.commit(offsets(p=3))
        assert refused.value.code is ErrorCode.OFFSET_WENT_BACK
        assert len(here.coordinator.commits) == 1


@asynccontextmanager
async def reading_from(began: int) -> AsyncIterator[Scene]:
    """A member that has begun there, in rewind epoch 1; the group has committed 68 in epoch 4."""
    async with scene() as here:
        assignment = Assignment()
        assignment.add(FetchState(P, "id"), OffsetAndMetadata(2, rewind_epoch=1))
        assignment.progress(P).began = began
        here.committer._assignment, here.committer._member = assignment, cast("Any", Joined())
        here.coordinator.known = OffsetAndMetadata(68, rewind_epoch=4)
        here.script({P: ErrorCode.OFFSET_WENT_BACK})
        yield here


def at(offset: int) -> dict[TopicPartition, OffsetAndMetadata]:
    return {P: OffsetAndMetadata(offset, rewind_epoch=1)}


async def test_a_member_goes_on_in_the_rewind_epoch_of_a_commit_that_it_took_for_lost() -> None:
    """Seed 94671: none of its commits was accepted again, for ever."""
    async with reading_from(2) as here:
        await here.committer.commit(at(151))
        assert here.coordinator.epochs == [1, 4]
        progress = here.committer._assignment.progress(P)
        assert progress.known == (4, 151)
        assert progress.rewind_epoch == 4


async def test_a_member_commits_again_once_it_has_passed_what_is_committed() -> None:
    async with reading_from(2) as here:
        with pytest.raises(ClusterError, match="t/0: scripted"):
            await here.committer.commit(at(50))
        assert here.coordinator.epochs == [1]
        progress = here.committer._assignment.progress(P)
        assert not progress.is_newer(68)
        assert progress.is_newer(69)


async def test_a_member_that_began_behind_what_is_committed_does_not_undo_a_way_back() -> None:
    async with reading_from(100) as here:
        with pytest.raises(ClusterError, match="t/0: scripted"):
            await here.committer.commit(at(151))
        assert here.coordinator.epochs == [1]
        assert here.committer._assignment.progress(P).rewind_epoch == 1


async def test_an_attempt_does_not_go_back_for_a_partition_that_left_after_the_one_before() -> None:
    """Seed 98433: a seek back, committed while nobody coordinated, was stored after the member had
    lost the partition with its session, and had begun to read it where the group was."""
    async with reading_from(2) as here:
        assignment = here.committer._assignment
        assignment.seek(P, 1)

        def answers() -> Iterator[PenstockError]:
            assignment.remove(P)
            assignment.add(FetchState(P, "id"), OffsetAndMetadata(2, rewind_epoch=1))
            yield UnreachableError("scripted")

        here.coordinator.script = answers()
        with pytest.raises(ClusterError, match="t/0: the partition left this consumer before"):
            await here.committer.commit(assignment.to_commit(only_done=False))
        assert here.coordinator.epochs == [2]
        assert assignment.progress(P).rewind_epoch == 1


@pytest.mark.parametrize(("left", "then"), [(True, "is not needed any more"), (False, "or seeks")])
async def test_the_warning_of_an_automatic_commit_says_what_comes_after_it(
    caplog: pytest.LogCaptureFixture, *, left: bool, then: str
) -> None:
    async with reading_from(2) as here:
        assignment = here.committer._assignment
        assignment.seek(P, 1)
        assignment.poll_began()

        def answers() -> Iterator[PenstockError | Refusals]:
            if left:
                assignment.remove(P)
                yield UnreachableError("scripted")
            yield {P: ErrorCode.OFFSET_WENT_BACK}

        here.coordinator.script = answers()
        await here.committer.commit_done(5)
        (line,) = (one.message for one in caplog.records if "automatic commit" in one.message)
        assert then in line


async def test_of_a_commit_the_rest_is_sent_if_a_partition_left_that_it_goes_back_for() -> None:
    async with reading_from(2) as here:
        assignment = here.committer._assignment
        assignment.add(FetchState(Q, "id"))
        assignment.seek(Q, 9)
        assignment.seek(P, 1)
        decided = assignment.to_commit(only_done=False)
        assignment.remove(P)
        here.script()
        with pytest.raises(ClusterError, match="t/0: the partition left this consumer before"):
            await here.committer.commit(decided)
        assert here.coordinator.commits == [{Q: 9}]
        assert assignment.progress(Q).known == (2, 9)


async def test_a_commit_counts_in_the_topic_that_it_was_decided_for() -> None:
    """Else, a group would begin in a topic that was created again where it was in the former one.
    Of a topic that is not assigned, the one that was known when the user committed counts."""
    async with reading_from(2) as here:
        assignment = here.committer._assignment
        topics = {"other": TopicDescription("other", "id", (), {})}
        here.committer._cluster = cast("Any", SimpleNamespace(view=SimpleNamespace(topics=topics)))

        def answers() -> Iterator[PenstockError | Refusals]:
            assignment.remove(P)
            assignment.add(FetchState(P, "another id"))
            assignment.progress(P).state.seek(5)
            topics["other"] = TopicDescription("other", "another id", (), {})
            yield UnreachableError("scripted")

        here.coordinator.script = answers()
        other = TopicPartition("other", 0)
        assignment.progress(P).state.seek(9)
        decided = assignment.decided({P: OffsetAndMetadata(9), other: OffsetAndMetadata(3)})
        with pytest.raises(ClusterError, match="t/0: the partition left this consumer before"):
            await here.committer.commit(decided)
        assert here.coordinator.topic_ids == ["id"] * 3
        assert here.coordinator.commits[-1] == {other: 3}
        assert assignment.to_commit(only_done=False) == {P: OffsetAndMetadata(5)}


async def test_a_commit_that_waits_counts_in_the_topic_that_it_was_decided_for() -> None:
    async with reading_from(2) as here:
        assignment = here.committer._assignment
        here.script({})
        assignment.progress(P).state.seek(9)
        decided = assignment.to_commit(only_done=False)
        assignment.remove(P)
        topics = {"t": TopicDescription("t", "another id", (), {})}
        here.committer._cluster = cast("Any", SimpleNamespace(view=SimpleNamespace(topics=topics)))
        await here.committer.commit(decided)
        assert here.coordinator.topic_ids == ["id"]


async def test_a_consumer_without_membership_asks_nobody() -> None:
    async with reading_from(2) as here:
        here.committer._member = cast("Any", Member())
        with pytest.raises(ClusterError, match="t/0: scripted"):
            await here.committer.commit(at(151))
        assert here.coordinator.fetches == 0


async def test_what_was_stored_stays_so_if_the_repetition_fails() -> None:
    gone = ClusterError("gone", ErrorCode.INVALID_REQUEST)
    async with scene() as here:
        here.script({Q: ErrorCode.UNKNOWN_PARTITION}, gone)
        outcomes: dict[str, PenstockError | None] = {}
        here.committer.start(offsets(p=3), lambda error: outcomes.update(p=error))
        here.committer.start(offsets(q=5), lambda error: outcomes.update(q=error))
        await wait_until_async(lambda: len(outcomes) == 2, what="both are answered")
        assert outcomes == {"p": None, "q": gone}
        assert here.stored == {P: 3}


async def test_nobody_waits_for_the_partition_of_another_s_commit() -> None:
    async with scene() as here:
        here.script(for_ever={Q: ErrorCode.UNKNOWN_TOPIC})
        heard: list[PenstockError | None] = []
        here.committer.start(offsets(p=3), heard.append)
        here.committer.start(offsets(q=5), None)
        await wait_until_async(lambda: heard, what="the one of p is answered")
        assert heard == [None]


async def test_an_automatic_commit_is_not_repeated_for_a_refused_partition() -> None:
    """Polls wait for it, and the next one covers it."""
    async with scene() as here:
        here.script(for_ever={Q: ErrorCode.UNKNOWN_TOPIC})
        here.done = offsets(p=3, q=5)
        await here.committer.commit_done(600.0)
        assert here.coordinator.commits == [{P: 3, Q: 5}]
        assert here.stored == {P: 3}


async def test_an_automatic_commit_waits_for_those_before_it_only_as_long_as_it_may() -> None:
    async with scene() as here:
        here.script(for_ever={Q: ErrorCode.UNKNOWN_TOPIC})
        here.committer.start(offsets(q=5), None)
        await wait_until_async(lambda: here.coordinator.commits, what="it is on its way")
        here.done = offsets(p=3)
        async with asyncio.timeout(300):
            await here.committer.commit_done(0.05)
        assert here.stored == {}


@pytest.mark.parametrize("code", FOR_NOW)
async def test_offsets_of_a_partition_that_is_refused_for_now_are_asked_for_again(
    code: ErrorCode,
) -> None:
    async with scene() as here:
        here.script({Q: code}, {Q: code})
        found = await here.committer.fetch({P: "id", Q: "id"})
        assert {where: one and one.offset for where, one in found.items()} == {P: 7, Q: 7}
        assert here.coordinator.fetches == 3


async def test_asking_for_offsets_ends_when_the_time_is_up_or_with_a_refusal_for_good(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with scene(request_timeout_ms=30_000) as here:
        monkeypatch.setattr(coordinator, "loop_time_s", lambda: 10.0 * here.coordinator.fetches)
        here.script(for_ever={P: ErrorCode.UNKNOWN_TOPIC})
        with pytest.raises(ClusterError) as refused:
            await here.committer.fetch({P: "id"})
        assert refused.value.code is ErrorCode.UNKNOWN_TOPIC
        assert here.coordinator.fetches == 3
        here.script({P: ErrorCode.UNKNOWN_TOPIC, Q: ErrorCode.TOPIC_ID_MISMATCH})
        with pytest.raises(ClusterError) as refused:
            await here.committer.fetch({P: "id", Q: "id"})
        assert refused.value.code is ErrorCode.TOPIC_ID_MISMATCH


async def test_who_asks_again_anyway_hears_at_once_of_a_partition_that_is_not_known() -> None:
    """A deleted topic must not hold up the start of the partitions assigned together with it."""
    async with scene() as here:
        here.script({P: ErrorCode.UNKNOWN_TOPIC})
        with pytest.raises(ClusterError) as refused:
            await here.committer.fetch({P: "id"}, repeat=False)
        assert refused.value.code is ErrorCode.UNKNOWN_TOPIC
        assert here.coordinator.fetches == 1

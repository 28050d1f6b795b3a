"""Keeps the consumer's buffers filled: a long poll per leader, many partitions in each.

    dispatch: partitions that want a fetch ──group by leader──▶ Fetch calls (tasks)
    answer ──▶ FetchState.accept ──▶ next call ──▶ `arrived`: a poll may go on

A partition is covered by one call at a time; a partition that becomes free while a long poll waits
(a drained buffer, a seek) gets its own call at once, at most `FETCHES_PER_LEADER` at a time. So no
call is ever cancelled for a change of plans: an answer for another offset than the one now needed
is dropped (fetch_state.py).

Broker and client work at the same time: partitions with more to read are split over three calls,
so that one answer is built and one is sent while another one is decoded, and the next call is sent
before a poll decodes the last answer. Partitions that are read to their end join a call that is
about to be answered instead of starting their own, so an idle consumer ends up with one waiting
call per leader.

Buffers hold at most `buffer_bytes`, plus the answers in flight, which are at most
`fetch_max_bytes` per leader, all calls together (I23).

Unary Fetch instead of Subscribe: positions stay in one place, and a lost answer costs nothing.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from penstock.client.clock import now_ms
from penstock.client.cluster.cluster import Cluster
from penstock.client.cluster.leaders import ask_once, offsets_call
from penstock.client.cluster.wire import isolation_to_wire
from penstock.client.config import ConsumerConfig
from penstock.client.consumer.fetch_link import Fetched, FetchLink
from penstock.client.consumer.fetch_state import FetchState
from penstock.client.model import OffsetSpec
from penstock.client.tasks import BackgroundTasks
from penstock.core.types import TopicPartition
from penstock.errors import (
    ClusterError,
    ErrorCode,
    NotLeaderError,
    OverloadedError,
    PenstockError,
)
from penstock.proto.v1 import broker_pb2 as pb
from penstock.rpc.batches import batch_from_wire
from penstock.rpc.errors import error_from_wire

FETCHES_PER_LEADER: Final = 4
BUSY_FETCHES: Final = 3
"""Partitions with more to read are split over this many calls to their leader; see above. The other
call is for a partition that becomes free meanwhile."""
RETRY_LOOK_MS: Final = 50
"""How often a partition is checked while it has no leader or waits to retry."""
STALL_MS: Final = 1_000
"""If an answer is this much later than promised, the client checks who leads."""
_STEPS_TO_SEND: Final = 3
"""Turns of the loop until a poked fetcher's next call is sent: `run`, `_fetch`, gRPC's task."""

_log = logging.getLogger("penstock.client")


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """A fetch in flight.

    Attributes:
        begun_ms: When it began (ms of a monotonic clock).
        max_bytes: Limit of its answer.
        is_prompt: One of its partitions has more to read, so it will not wait for records.
    """

    begun_ms: int
    max_bytes: int
    is_prompt: bool


@dataclass(frozen=True, slots=True)
class Asked:
    """What one fetch requested of a partition."""

    state: FetchState
    generation: int
    offset: int


class Fetcher:
    """Owned by the consumer's event loop. `states` is the consumer's assignment, shared."""

    def __init__(
        self,
        cluster: Cluster,
        config: ConsumerConfig,
        states: dict[TopicPartition, FetchState],
        tasks: BackgroundTasks,
    ) -> None:
        self._cluster = cluster
        self._config = config
        self._states = states
        self._tasks = tasks
        self._changed = asyncio.Event()
        self._under_way: dict[str, list[Call]] = {}
        self._links: dict[str, FetchLink] = {}
        self._turn = 0
        self.arrived: Callable[[], None] = lambda: None
        cluster.on_change(self._leaders_changed)

    def poke(self) -> None:
        """Something changed: an assignment, a position, space in a buffer."""
        self._changed.set()

    async def run(self) -> None:
        """The fetcher's task, until cancelled."""
        while True:
            self._changed.clear()
            pause_ms = self._dispatch(now_ms())
            try:
                async with asyncio.timeout(None if pause_ms is None else pause_ms / 1000):
                    await self._changed.wait()
            except TimeoutError:
                pass

    def _dispatch(self, at_ms: int) -> int | None:
        """Starts the fetches that are due. Returns when to check again, None = when poked."""
        look_ms: int | None = None
        due: dict[str, list[FetchState]] = {}
        lost: dict[str, list[FetchState]] = {}
        room = self._config.buffer_bytes - sum(s.buffered_bytes for s in self._states.values())
        for state in self._in_turn():
            address = self._where_to(state, at_ms)
            if address is None or state.retry_at_ms > at_ms:
                look_ms = RETRY_LOOK_MS if state.error is None else look_ms
            elif state.position is None:
                if state.error is None:
                    lost.setdefault(address, []).append(state)
            elif room > 0 and self._is_free(state, address):
                due.setdefault(address, []).append(state)
        for states in lost.values():  # a leader that does not answer delays no other's
            self._look_up_positions(states)
        for address, states in due.items():
            under_way = self._under_way.setdefault(address, [])
            for part in split(states, under_way):
                under_way.append(self._ask(address, part, at_ms))
        stalled_ms = self._check_stalled(at_ms)
        return look_ms if look_ms is not None else stalled_ms

    def _ask(self, address: str, states: list[FetchState], at_ms: int) -> "Call":
        """Starts a fetch of these partitions."""
        left = self._config.fetch_max_bytes - sum(c.max_bytes for c in self._under_way[address])
        wanted = len(states) * self._config.max_partition_fetch_bytes
        is_prompt = any(state.has_more for state in states)
        # Half of what is left: a later call never finds nothing, and the sum stays bounded.
        call = Call(at_ms, max(1, min(wanted, left // 2)), is_prompt)
        asked = [Asked(state, state.generation, state.fetch_offset) for state in states]
        for state in states:
            state.in_flight = (state.generation, address)
        self._tasks.spawn(self._fetch(address, asked, call), f"fetch-{address}")
        return call

    def _look_up_positions(self, lost: list[FetchState]) -> None:
        states = [state for state in lost if state.looking_up != state.generation]
        if states:
            for state in states:
                state.looking_up = state.generation
            self._tasks.spawn(self._look_up(states), "positions")

    async def _look_up(self, states: list[FetchState]) -> None:
        """Looks up the start offset of partitions without a position."""
        asked = [Asked(state, state.generation, -1) for state in states]
        specs: dict[TopicPartition, OffsetSpec | int] = {
            state.where: state.start for state in states
        }
        timeout_s = self._config.request_timeout_ms / 1000
        call = offsets_call(self._cluster)
        answers = await ask_once(self._cluster, specs, call, timeout_s)
        for part in asked:
            answer = answers[part.state.where]
            if part.state.looking_up == part.generation:
                part.state.looking_up = None
            if isinstance(answer, PenstockError):
                self._failed(part, answer)
            elif part.generation == part.state.generation:
                part.state.looked_up(answer.offset)
        self.arrived()
        self.poke()

    def _in_turn(self) -> list[FetchState]:
        """All partitions, starting with a different one each time, because answers are filled from
        the front."""
        states = list(self._states.values())
        self._turn = (self._turn + 1) % max(1, len(states))
        return states[self._turn :] + states[: self._turn]

    def _is_free(self, state: FetchState, address: str) -> bool:
        return state.in_flight != (state.generation, address) and state.wants_fetch(
            self._config.max_partition_fetch_bytes
        )

    def _where_to(self, state: FetchState, at_ms: int) -> str | None:
        """The leader's address; None if there is none. Notices deleted topics."""
        topic = self._cluster.view.topics.get(state.where.topic)
        if topic is not None and topic.topic_id != state.topic_id:
            self._fail(state, _created_again(state, topic.topic_id))
            return None
        leader = self._cluster.view.leader(state.where)
        if leader is not None:
            return leader.address
        self._cluster.refresh_soon(state.where.topic)
        if state.failing_since_ms is None:
            state.failing_since_ms = at_ms
        failing_ms = at_ms - state.failing_since_ms
        if topic is None and failing_ms > self._config.unknown_topic_timeout_ms:
            self._fail(state, _gone(state))
        return None

    def _check_stalled(self, at_ms: int) -> int | None:
        """Checks for brokers that do not answer in time; their partitions may have moved."""
        started = [call.begun_ms for calls in self._under_way.values() for call in calls]
        if not started:
            return None
        patience_ms = self._config.fetch_max_wait_ms + STALL_MS
        if at_ms - min(started) > patience_ms:
            self._cluster.refresh_soon()
        return patience_ms

    async def _fetch(self, address: str, asked: list[Asked], call: Call) -> None:
        request = pb.FetchRequest(
            cluster_id=self._cluster.view.cluster_id,
            max_wait_ms=self._config.fetch_max_wait_ms,
            min_bytes=self._config.fetch_min_bytes,
            max_bytes=call.max_bytes,
            isolation_level=isolation_to_wire(self._config),
            partitions=[
                pb.FetchPartition(
                    topic=part.state.where.topic,
                    topic_id=part.state.topic_id,
                    partition=part.state.where.partition,
                    offset=part.offset,
                    max_bytes=self._config.max_partition_fetch_bytes,
                )
                for part in asked
            ],
        )
        timeout_s = (self._config.fetch_max_wait_ms + self._config.request_timeout_ms) / 1000
        try:
            answer = await self._link(address).fetch(request, timeout_s)
            throttle_ms = answer.response.throttle_ms
            self._take(asked, answer)
        except PenstockError as error:
            throttle_ms = 0
            for part in asked:
                self._failed(part, error)
        finally:
            for part in asked:
                if part.state.in_flight == (part.generation, address):
                    part.state.in_flight = None
            self._under_way[address].remove(call)
        for part in asked if throttle_ms else ():
            part.state.retry_at_ms = now_ms() + throttle_ms
        self.poke()
        for _ in range(_STEPS_TO_SEND):
            await asyncio.sleep(0)
        self.arrived()

    def _link(self, address: str) -> FetchLink:
        link = self._links.get(address)
        if link is None:
            link = FetchLink(self._cluster.connections.to(address), self._tasks)
            self._links[address] = link
        return link

    def _take(self, asked: Iterable[Asked], answer: Fetched) -> None:
        by_partition = {part.state.where: part for part in asked}
        payloads = iter(answer.payloads or ())
        for result in answer.response.results:
            sent = [(batch, next(payloads, None)) for batch in result.batches]
            part = by_partition.get(TopicPartition(result.topic, result.partition))
            if part is None:
                continue
            if result.HasField("error"):
                self._failed(part, error_from_wire(result.error))
                continue
            try:
                batches = [batch_from_wire(message, payload) for message, payload in sent]
            except PenstockError as error:
                self._failed(part, error)
                continue
            part.state.accept(
                part.offset, batches, result.high_watermark, result.last_stable_offset
            )
            part.state.leader_epoch = result.leader_epoch

    def _failed(self, part: Asked, error: PenstockError) -> None:
        state = part.state
        if part.generation != state.generation:
            return
        if error.refresh_metadata:
            self._cluster.refresh_soon()
        config = self._config
        if error.code is ErrorCode.OFFSET_OUT_OF_RANGE:
            warning = state.out_of_range(error, config.on_offset_out_of_range, now_ms())
            if warning:
                _log.warning(warning)
                return
        elif error.code is ErrorCode.TOPIC_ID_MISMATCH:
            self._fail(state, _created_again(state, "another one"))
        elif not error.retriable and error.code is not ErrorCode.UNSPECIFIED:
            at = f"{state.where} offset {part.offset}" if part.offset >= 0 else f"{state.where}"
            self._fail(state, ClusterError(f"{at}: {error}", error.code))
        if isinstance(error, OverloadedError):
            state.retry_at_ms = now_ms() + error.throttle_ms
        elif state.error is None:
            state.back_off(config.retry_backoff_ms, config.retry_backoff_max_ms, now_ms())
        if isinstance(error, NotLeaderError) and error.leader is not None:
            # Last: a new leader ends the pause that the failure has just begun.
            self._cluster.learn_leader(state.where, error.leader)

    def _fail(self, state: FetchState, error: PenstockError) -> None:
        if state.error is None:
            state.error = error
            self.arrived()

    def _leaders_changed(self) -> None:
        for state in self._states.values():
            leader = self._cluster.view.leader(state.where)
            if leader is not None and leader.leader_epoch > state.leader_epoch:
                state.retry_now()
        self.poke()


def split(states: list[FetchState], under_way: Sequence[Call]) -> list[list[FetchState]]:
    """The calls to make for these partitions of one leader, besides those in flight; maybe none."""
    ahead = sum(state.has_more for state in states)
    if len(under_way) >= FETCHES_PER_LEADER:
        return []
    if not ahead and any(call.is_prompt for call in under_way):
        return []  # they join the next call; this one's answer is due
    count = max(1, min(ahead, BUSY_FETCHES - len(under_way)))
    return [states[at::count] for at in range(count)]


def _created_again(state: FetchState, topic_id: str) -> ClusterError:
    return ClusterError(
        f"{state.where}: the topic was deleted and created again (id {state.topic_id} is now "
        f"{topic_id}): offset {state.position} of the old topic has no meaning in the new one; "
        "assign the partition again and seek to the start",
        ErrorCode.TOPIC_ID_MISMATCH,
    )


def _gone(state: FetchState) -> ClusterError:
    return ClusterError(
        f"{state.where}: the topic no longer exists; the position was {state.position}",
        ErrorCode.UNKNOWN_TOPIC,
    )

"""From waiting batches to settled ones: carries out what the lanes decide, follows the leaders.

    accumulator ──news──▶ tick: expire, new identities, who leads ──wake──▶ links
    links ──next_request──▶ lanes (resend, take) ──▶ ProduceRequests (requests.py)
    links ──answered / broken──▶ lanes (succeeded, failed) ──▶ outcomes

Everything except InitProducer (`producer_ids.py`) happens in `_tick` and the callbacks of links,
which do not await: no state changes between check and action. A lane is bound to one link as long
as any of its batches is outstanding there, so a new leader cannot overtake the old one. Keeps I9
with `lane.py`; I8 by distinguishing definite failures from unknown outcomes.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from penstock.client.alarm import Alarm
from penstock.client.clock import now_ms
from penstock.client.cluster.cluster import Cluster
from penstock.client.cluster.view import Leader
from penstock.client.config import ProducerConfig
from penstock.client.model import DeliveryReport
from penstock.client.producer.accumulator import Accumulator, PartitionQueue, PendingBatch
from penstock.client.producer.delivery import DeliveryError
from penstock.client.producer.lane import Entry, Lane
from penstock.client.producer.late import LateDeliveries
from penstock.client.producer.link import STALL_MS, ProduceLink, Request, Sent
from penstock.client.producer.producer_ids import ProducerIds
from penstock.client.producer.requests import ProduceRequests
from penstock.client.tasks import BackgroundTasks
from penstock.core.types import Acks, ProducerIdentity, Sync
from penstock.errors import ClusterError, ErrorCode, NotLeaderError, PenstockError
from penstock.proto.v1 import broker_pb2 as pb
from penstock.rpc.errors import error_from_wire

REQUEST_BYTES: Final = 1024 * 1024
"""Size at which a request is closed: enough for several partitions to share one call."""
TICK_MS: Final = 50
"""How often deadlines and silent brokers are checked while anything is in flight."""
_UNKNOWN_AGAIN: Final = 5
"""How much longer a topic may be unknown that was known before: a broker that restarts may know
less than the one before."""

DELIVERY_FAILED: Final = "delivery failed: %s"
_log = logging.getLogger("penstock.client")


class Sender:
    """Owned by the producer's event loop; `wake` may be called from any thread."""

    def __init__(self, cluster: Cluster, accumulator: Accumulator, tasks: BackgroundTasks) -> None:
        assert isinstance(cluster.config, ProducerConfig)
        self._config = cluster.config
        self._cluster = cluster
        self._accumulator = accumulator
        self._tasks = tasks
        self._lanes: dict[PartitionQueue, Lane[PendingBatch]] = {}
        self._active: dict[PartitionQueue, Lane[PendingBatch]] = {}
        self._link_of: dict[PartitionQueue, str] = {}
        self._links: dict[str, ProduceLink] = {}
        self._troubles: dict[PartitionQueue, PenstockError] = {}
        self._late = LateDeliveries(cluster.config.delivery_timeout_ms)
        self._unknown_ms: dict[PartitionQueue, tuple[int, int]] = {}
        """When brokers first and last said, without other news, that there is no such topic."""
        self._news = asyncio.Event()
        self._transactional = bool(self._config.transactional_id)
        self._requests = ProduceRequests(self._config)
        self._ids = ProducerIds(cluster, tasks, on_newer=self.wake, on_trouble=self._no_identity)
        self.on_settled: Callable[[], None] = lambda: None
        self.on_given_up: Callable[[PenstockError], None] = lambda _: None
        self.failed_records = 0
        cluster.on_change(self._leaders_changed)

    def wake(self, queue: PartitionQueue | None = None) -> None:
        """There is something new, in this queue and maybe others; in the event loop's thread."""
        self._news.set()
        if queue is not None and queue in self._link_of:
            # It runs behind the sender, in the same turn: most likely that leader gets it.
            self._links[self._link_of[queue]].wake()

    async def run(self) -> None:
        """The sender's task, until cancelled."""
        alarm = Alarm(self._news.set)
        try:
            while True:
                self._news.clear()
                alarm.within(self._tick(now_ms()))
                await self._news.wait()
        finally:
            alarm.cancel()

    def abandon(self, code: ErrorCode, reason: str) -> None:
        """Gives up everything: sent batches have an unknown outcome, the rest was never sent."""
        error = ClusterError(reason, code)
        for queue in self._accumulator.take_news():
            self._lane(queue)
        for queue, lane in self._lanes.items():
            for entry in list(lane.window):
                unknown = entry.unknown or entry.outstanding
                self._give_up(queue, entry.batch, error, unknown=unknown)
            for batch in self._accumulator.take_all(queue):
                self._give_up(queue, batch, error, unknown=False)

    # -- transactions ------------------------------------------------------------------------

    def adopt(self, identity: ProducerIdentity) -> None:
        """Adopts the identity of the next transaction; nothing of the last one is left."""
        self._ids.newest = identity
        for lane in self._lanes.values():
            lane.adopt(identity)

    def discard(self, error: PenstockError) -> None:
        """Gives up all batches of a transaction; later answers about them are ignored.

        The gate is closed: nothing is added in the meantime. The loss of one batch may be what ends
        the transaction: that one is settled already, and still in its window.
        """
        for queue in self._accumulator.take_news():
            self._active[queue] = self._lane(queue)
        for queue, lane in self._lanes.items():
            waiting = self._accumulator.take_all(queue)
            for batch in [*(entry.batch for entry in lane.discard()), *waiting]:
                if not batch.outcome.done:
                    self._settle(batch, _not_delivered(queue, batch, error, unknown=False))
        self.wake()

    # -- what links ask and report -----------------------------------------------------------

    def next_request(self, address: str) -> Request | None:
        at_ms = now_ms()
        request: Request | None = None
        size = 0
        for queue in list(self._active):
            leader = self._cluster.view.leader(queue.where)
            if leader is None or not self._may_send(queue, leader, address):
                continue
            sent = self._next_batch(queue, at_ms)
            if sent is None:
                continue
            self._link_of[queue] = address
            if request is None:
                request = Request(self._requests.empty(self._cluster.view.cluster_id), [])
            request.parts.append(sent)
            size += self._requests.add(request.message, sent, leader)
            # The next request starts with the partitions that did not fit into this one.
            self._active[queue] = self._active.pop(queue)
            if size >= REQUEST_BYTES:
                break
        return request

    def answered(self, request: Request, answer: pb.ProduceResponse) -> None:
        missing = ClusterError("the answer lacks this partition", ErrorCode.INTERNAL)
        for index, sent in enumerate(request.parts):
            if index >= len(answer.results):
                self._failed(sent, missing)
                continue
            result = answer.results[index]
            if result.HasField("error"):
                self._failed(sent, error_from_wire(result.error))
            else:
                self._succeeded(sent, result)
        self.wake()

    def broken(self, requests: Sequence[Request], error: PenstockError, *, refused: bool) -> None:
        for request in requests:
            for sent in request.parts:
                sent.entry.unknown = sent.entry.unknown or not refused
                self._failed(sent, error)
        self._cluster.refresh_soon()
        self.wake()

    def unreachable(self, address: str, error: PenstockError) -> None:
        for queue in self._active:
            leader = self._cluster.view.leader(queue.where)
            if leader is not None and leader.address == address:
                self._troubles[queue] = error
        self._cluster.refresh_soon()

    # -- the tick ----------------------------------------------------------------------------

    def _tick(self, at_ms: int) -> int | None:
        """Handles everything in flight. Returns the time to the next tick in ms."""
        for queue in self._accumulator.take_news():
            self._active[queue] = self._lane(queue)
        pauses = [
            pause
            for queue, lane in list(self._active.items())
            if (pause := self._look_after(queue, lane, at_ms)) is not None
        ]
        for link in self._links.values():
            self._check(link, at_ms)
        return max(1, min(pauses)) if pauses else None

    def _look_after(
        self, queue: PartitionQueue, lane: Lane[PendingBatch], at_ms: int
    ) -> int | None:
        """Handles one partition; None = it has nothing left and rests."""
        self._expire(queue, lane, at_ms)
        look_ms = self._accumulator.next_look_ms(queue)
        if look_ms is None and not lane.window:
            del self._active[queue]
            self._late.rests(queue)
            if queue.gone:
                for kept in (self._lanes, self._link_of, self._troubles, self._unknown_ms):
                    kept.pop(queue, None)
            return None
        self._late.look(queue, self._troubles.get(queue), at_ms)
        self._identify(queue, lane)
        leader = self._cluster.view.leader(queue.where)
        if leader is None:
            self._has_no_leader(queue, lane, at_ms)
            return TICK_MS
        waiting = any(not entry.outstanding for entry in lane.window)
        if waiting:
            self._cluster.refresh_soon()
        ready = look_ms is not None and look_ms <= at_ms
        if waiting or ready:
            link = self._link(leader.address)
            link.wake()
            if link.connecting:
                # A partition whose leader just died has a new leader long before connecting times
                # out.
                self._cluster.refresh_soon()
        later = [when - at_ms for when in (look_ms, lane.retry_at_ms) if when and when > at_ms]
        return min([TICK_MS, *later])

    def _has_no_leader(self, queue: PartitionQueue, lane: Lane[PendingBatch], at_ms: int) -> None:
        topic = self._cluster.view.topics.get(queue.where.topic)
        first = lane.window[0].batch if lane.window else self._accumulator.first(queue)
        if topic is None:
            self._heard_unknown(queue, at_ms)
            text, code = f"{queue.where} does not exist", ErrorCode.UNKNOWN_TOPIC
        elif (
            first is not None
            and first.topic_id != topic.topic_id
            and queue.where.partition >= len(topic.partitions)
        ):  # no broker will ever refuse the records of this partition
            text = f"topic {topic.topic!r} was created again, with fewer partitions"
            code = ErrorCode.TOPIC_ID_MISMATCH
            self._give_up_all(queue, lane, ClusterError(text, code), at_ms)
        else:
            text, code = f"{queue.where} has no leader", ErrorCode.LEADER_NOT_AVAILABLE
        self._troubles[queue] = ClusterError(text, code)
        self._cluster.refresh_soon(queue.where.topic)

    def _expire(self, queue: PartitionQueue, lane: Lane[PendingBatch], at_ms: int) -> None:
        first_ms, last_ms = self._unknown_ms.get(queue, (0, 0))
        if last_ms - first_ms >= self._unknown_topic_ms:
            self._give_up_unknown(queue, lane, at_ms)
        for entry in lane.expire(at_ms):
            cause = entry.last_error or self._troubles.get(queue)
            self._give_up(queue, entry.batch, self._timed_out(cause), unknown=entry.unknown)
        for batch in self._accumulator.expire(queue, at_ms):
            cause = self._troubles.get(queue) or _last_error(lane)
            self._give_up(queue, batch, self._timed_out(cause), unknown=False)

    def _heard_unknown(self, queue: PartitionQueue, at_ms: int) -> None:
        first_ms, _ = self._unknown_ms.get(queue, (at_ms, at_ms))
        self._unknown_ms[queue] = (first_ms, at_ms)

    def _give_up_unknown(self, queue: PartitionQueue, lane: Lane[PendingBatch], at_ms: int) -> None:
        error = ClusterError(
            f"for {self._unknown_topic_ms} ms no broker has known topic {queue.where.topic!r}: it "
            "was deleted, or you may not see it any more",
            ErrorCode.UNKNOWN_TOPIC,
        )
        del self._unknown_ms[queue]
        self._give_up_all(queue, lane, error, at_ms)

    def _give_up_all(
        self, queue: PartitionQueue, lane: Lane[PendingBatch], error: ClusterError, at_ms: int
    ) -> None:
        """As if all deadlines had passed: nobody has to wait that long to hear it."""
        last_ms = at_ms + self._config.delivery_timeout_ms
        for entry in lane.expire(last_ms):
            self._give_up(queue, entry.batch, error, unknown=entry.unknown)
        for batch in self._accumulator.expire(queue, last_ms):
            self._give_up(queue, batch, error, unknown=False)

    @property
    def _unknown_topic_ms(self) -> int:
        return min(
            _UNKNOWN_AGAIN * self._cluster.config.unknown_topic_timeout_ms,
            self._config.delivery_timeout_ms,
        )

    def _timed_out(self, cause: PenstockError | None) -> ClusterError:
        why = "no answer yet" if cause is None else f"last error: {cause.message}"
        return ClusterError(
            f"not delivered within {self._config.delivery_timeout_ms} ms (delivery_timeout_ms); "
            f"{why}",
            ErrorCode.DELIVERY_TIMED_OUT,
        )

    def _check(self, link: ProduceLink, at_ms: int) -> None:
        """Ends a stream that waits for a broker that no longer leads, or never answers."""
        pending = link.pending
        if not pending or at_ms - pending[0].written_ms < STALL_MS:
            return
        if at_ms - pending[0].written_ms > self._config.request_timeout_ms + STALL_MS:
            link.snap(
                ClusterError(
                    f"{link.address}: no answer within {self._config.request_timeout_ms} ms",
                    ErrorCode.REQUEST_TIMED_OUT,
                )
            )
            return
        for sent in pending[0].parts:
            leader = self._cluster.view.leader(sent.queue.where)
            if leader is not None and leader.address != link.address:
                text = f"{link.address}: no answer, and {sent.queue.where} now has another leader"
                link.snap(ClusterError(text, ErrorCode.REQUEST_TIMED_OUT))
                return
        self._cluster.refresh_soon()

    def _leaders_changed(self) -> None:
        for queue, lane in self._active.items():
            leader = self._cluster.view.leader(queue.where)
            if leader is not None and leader.address != self._link_of.get(queue):
                lane.retry_now()
        self.wake()

    # -- batches -----------------------------------------------------------------------------

    def _may_send(self, queue: PartitionQueue, leader: Leader, address: str) -> bool:
        if leader.address != address:
            return False
        # Until the old leader has answered, nothing goes to the new one, which could overtake it.
        return self._link_of.get(queue) == address or not self._lanes[queue].outstanding

    def _next_batch(self, queue: PartitionQueue, at_ms: int) -> Sent | None:
        lane = self._lanes[queue]
        entry = lane.resend(at_ms)
        while entry is None and lane.can_take(at_ms):
            batch = self._accumulator.next_batch(queue, at_ms)
            if batch is None:
                return None
            try:
                batch.encoded()
            except PenstockError as error:
                self._give_up(queue, batch, error, unknown=False)
                continue
            entry = lane.take(batch, batch.record_count, batch.deadline_ms)
        return None if entry is None else Sent(queue, lane, entry)

    def _succeeded(self, sent: Sent, result: pb.ProduceResult) -> None:
        sent.lane.succeeded(sent.entry)
        self._troubles.pop(sent.queue, None)
        self._unknown_ms.pop(sent.queue, None)
        if sent.entry.ghost or sent.entry.discarded:
            return
        batch = sent.entry.batch
        report = DeliveryReport(
            topic=sent.queue.where.topic,
            partition=sent.queue.where.partition,
            base_offset=result.base_offset,
            record_count=batch.record_count,
            acks=Acks(result.acks or self._config.acks),
            sync=Sync(result.sync or self._config.sync),
            leader_epoch=result.leader_epoch,
            append_time_ms=result.append_time_ms,
            duplicate=result.duplicate,
        )
        batch.outcome.resolve(report)
        self._accumulator.release(batch)
        self.on_settled()

    def _failed(self, sent: Sent, error: PenstockError) -> None:
        ghost = sent.entry.ghost
        self._troubles[sent.queue] = error
        if error.code is ErrorCode.UNKNOWN_TOPIC:
            self._heard_unknown(sent.queue, now_ms())
        else:
            self._unknown_ms.pop(sent.queue, None)
        if _may_split(sent.entry, error):
            halves = self._accumulator.split(sent.entry.batch)
            sent.lane.split(sent.entry, [(half, half.record_count) for half in halves])
        elif sent.lane.failed(sent.entry, error, now_ms()) and not ghost:
            self._give_up(sent.queue, sent.entry.batch, error, unknown=sent.entry.unknown)
        if error.refresh_metadata or error.code is ErrorCode.RECORD_TOO_LARGE:
            self._cluster.refresh_soon()  # of a lowered limit, too: the next batches then fit
        if isinstance(error, NotLeaderError) and error.leader is not None:
            # Last: a new leader ends the pause that the failure has just begun.
            self._cluster.learn_leader(sent.queue.where, error.leader)

    def _give_up(
        self, queue: PartitionQueue, batch: PendingBatch, error: PenstockError, *, unknown: bool
    ) -> None:
        if batch.outcome.done:
            return
        told = _not_delivered(queue, batch, error, unknown=unknown)
        self.failed_records += batch.record_count
        _log.warning(DELIVERY_FAILED, told)
        self._settle(batch, told)
        self.on_given_up(told)

    def _settle(self, batch: PendingBatch, error: DeliveryError) -> None:
        batch.outcome.fail(error)
        self._accumulator.release(batch)
        self.on_settled()

    # -- lanes, links, identities --------------------------------------------------------------

    def _lane(self, queue: PartitionQueue) -> Lane[PendingBatch]:
        lane = self._lanes.get(queue)
        if lane is None:
            config = self._config
            pipelined = config.idempotent or config.acks is Acks.NONE
            lane = self._lanes[queue] = Lane(
                max_in_flight=config.max_in_flight if pipelined else 1,
                idempotent=config.idempotent,
                transactional=self._transactional,
                backoff_ms=config.retry_backoff_ms,
                backoff_max_ms=config.retry_backoff_max_ms,
            )
            if self._transactional and self._ids.newest is not None:
                lane.adopt(self._ids.newest)
        return lane

    def _link(self, address: str) -> ProduceLink:
        link = self._links.get(address)
        if link is None:
            link = ProduceLink(self._cluster.connections.to(address), self)
            self._links[address] = link
            self._tasks.spawn(link.run(), f"produce-{address}")
        return link

    def _identify(self, queue: PartitionQueue, lane: Lane[PendingBatch]) -> None:
        """Gives the lane the newest identity if it needs one, or if a change is harmless."""
        if not self._config.idempotent or self._transactional:
            return  # a transaction's identity is adopted when it begins
        newest = self._ids.newest
        stale = newest is not None and newest != lane.identity
        if not lane.needs_identity and (lane.window or not stale):
            return
        if newest is None or not stale:
            self._ids.ask()
            return
        for entry in lane.adopt(newest):
            error = entry.last_error or ClusterError("no answer", ErrorCode.REQUEST_TIMED_OUT)
            self._give_up(queue, entry.batch, error, unknown=True)

    def _no_identity(self, error: PenstockError) -> None:
        for queue in self._active:
            self._troubles[queue] = error


def _may_split(entry: Entry[PendingBatch], error: PenstockError) -> bool:
    """Refused for its size, as the topic's limit was lowered, and certainly not stored."""
    settled = entry.ghost or entry.discarded or entry.unknown
    too_large = error.code is ErrorCode.RECORD_TOO_LARGE
    return too_large and not settled and entry.batch.record_count > 1


def _not_delivered(
    queue: PartitionQueue, batch: PendingBatch, error: PenstockError, *, unknown: bool
) -> DeliveryError:
    known = "; they may be in the log nevertheless" if unknown else ""
    return DeliveryError(
        f"{queue.where}: {batch.record_count} records: {error.message}{known}",
        error.code,
        topic=queue.where.topic,
        partition=queue.where.partition,
        unknown_outcome=unknown,
    )


def _last_error(lane: Lane[PendingBatch]) -> PenstockError | None:
    return next((entry.last_error for entry in lane.window if entry.last_error), None)

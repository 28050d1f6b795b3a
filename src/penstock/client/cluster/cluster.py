"""The client's access to the cluster: finds a broker that answers, keeps the metadata fresh.

    bootstrap addresses ─┐
    brokers of the view ─┴─▶ candidates ──▶ first that answers ──▶ MetadataSnapshot (view.py)

Any address will do at first, and dead ones are skipped; brokers found later come first, and brokers
that did not answer lately come last. If none answers within the timeout, one UnreachableError lists
every address with its reason. Refreshes are shared: many callers that miss the same leader cause
one request, and background refreshes are at least `REFRESH_INTERVAL_MS` apart. The view changes
only here; listeners are notified.

A refresh asks for the topics of the view that are in use. One that an answer lacks is asked for no
more, or deleted topics would fill the request until brokers refuse it; who still waits for such a
topic names it in each refresh.
"""

import asyncio
import logging
import math
import random
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Final, TypeVar

from penstock.client.clock import loop_time_s
from penstock.client.cluster.connections import Connection, Connections, OpenChannel
from penstock.client.cluster.credentials import credentials_of
from penstock.client.cluster.view import MetadataSnapshot
from penstock.client.cluster.wire import view_from_wire
from penstock.client.config import ClientConfig
from penstock.client.model import TopicDescription
from penstock.core.topic import validate_topic_name
from penstock.core.types import TopicPartition
from penstock.errors import (
    ClusterError,
    CurrentLeader,
    ErrorCode,
    PenstockError,
    ThrottledError,
    UnreachableError,
)
from penstock.proto.v1 import broker_pb2 as pb
from penstock.rpc.channel import open_aio_channel
from penstock.rpc.errors import error_from_wire

Answer = TypeVar("Answer")
Call = Callable[[Connection, float], Awaitable[Answer]]
"""(connection, timeout in s) -> the answer."""

REFRESH_INTERVAL_MS: Final = 50
"""Between background refreshes: an election takes a second, so this adds little to the gap."""
REFRESH_MAX_MS: Final = 500
"""What the interval grows to while the answers bring nothing new."""
SUSPECT_S: Final = 10.0
"""For how long an address that did not answer is tried only after the others."""
FIRST_ATTEMPT_S: Final = 1.0
"""Timeout per address in the first round; doubles with each round."""

REFUSED_S: Final = 1.0
"""Timeout for a cluster that has never answered and whose addresses all refuse connections: brokers
that are just starting listen by then, and a wrong address is reported soon. A cluster that has
answered before may be restarting."""

_log = logging.getLogger("penstock.client")


class Cluster:
    """Shared by the parts of one client. Owned by one event loop."""

    def __init__(
        self,
        bootstrap: tuple[str, ...],
        config: ClientConfig,
        *,
        sticky: bool = False,
        open_channel: OpenChannel = open_aio_channel,
        shuffle: Callable[[list[str]], None] = random.shuffle,
    ) -> None:
        """`sticky`: keep asking the broker that answered last, so that answers never go back.

        Otherwise questions are spread over the brokers, as `shuffle` orders their addresses.
        """
        self.view = MetadataSnapshot()
        credentials = credentials_of(config)
        self.connections = Connections(config.resolve_address, credentials, open_channel)
        self._shuffle = shuffle
        self.config = config
        self._bootstrap = bootstrap
        self._sticky = sticky
        self._answered_last = ""
        self._diagnosed = False
        self._taught_by = ""
        self._topics: set[str] = set()
        """What every refresh asks for: topics of the view, never others."""
        self._asked: frozenset[str] = frozenset()
        """What the last request that was answered asked for."""
        self._topic_errors: dict[str, PenstockError] = {}
        self._suspects: dict[str, float] = {}
        self._silent: dict[str, PenstockError] = {}
        self._refreshing = asyncio.Lock()
        self._refreshed_at = -1.0
        self._wanted = asyncio.Event()
        self._wanted_topics: set[str] = set()
        self._listeners: list[Callable[[], None]] = []

    def on_change(self, listener: Callable[[], None]) -> None:
        """Calls `listener` whenever the view has changed."""
        self._listeners.append(listener)

    async def refresh(
        self, timeout_s: float = math.inf, topics: Collection[str] = ()
    ) -> MetadataSnapshot:
        """The view after an answer to a request that was not sent before this call.

        `topics`: asked for whether they are known or not; later refreshes ask for those that exist.

        Raises UnreachableError if no broker answers within `timeout_s`, and never later than
        `connect_timeout_ms`.
        """
        timeout_s = max(0.0, min(timeout_s, self.config.connect_timeout_ms / 1000))
        called_at = loop_time_s()
        try:
            async with asyncio.timeout(timeout_s):
                await self._refreshing.acquire()
        except TimeoutError:  # another caller's request has no answer either
            raise _nobody_answered(self._silent, self._candidates(), timeout_s) from None
        try:
            if self._refreshed_at < called_at or not self._asked.issuperset(topics):
                await self._refresh(called_at + timeout_s - loop_time_s(), topics)
        finally:
            self._refreshing.release()
        return self.view

    async def _refresh(
        self, timeout_s: float, topics: Collection[str], avoid: frozenset[str] = frozenset()
    ) -> None:
        started_at = loop_time_s()
        asked = frozenset(self._topics.union(topics))
        request = pb.MetadataRequest(
            cluster_id=self.view.cluster_id, topics=sorted(asked), no_topics=not asked
        )

        async def call(connection: Connection, attempt_s: float) -> pb.MetadataResponse:
            self._taught_by = connection.address
            return await connection.call(connection.broker.Metadata, request, attempt_s)

        self._learn(await self.ask(call, timeout_s, avoid=avoid), asked)
        self._topics.update(topics)
        self._topics.intersection_update(self.view.topics)
        self._refreshed_at, self._asked = started_at, asked

    def refresh_soon(self, *topics: str) -> None:
        """Makes the background task refresh, and ask for these topics too; returns at once."""
        self._wanted_topics.update(topics)
        self._wanted.set()

    async def keep_fresh(self) -> None:
        """The background task: refreshes when wanted, and when the view has become old."""
        pause_ms = REFRESH_INTERVAL_MS
        while True:
            idle_since = loop_time_s()
            try:
                async with asyncio.timeout(self.config.metadata_max_age_ms / 1000):
                    await self._wanted.wait()
            except TimeoutError:
                pass
            self._wanted.clear()
            topics, self._wanted_topics = self._wanted_topics, set()
            before = self.view
            try:
                await self.refresh(topics=topics)
            except PenstockError as error:
                _log.warning("metadata refresh failed: %s", error)
            news = self.view is not before or loop_time_s() - idle_since > 1.0
            pause_ms = REFRESH_INTERVAL_MS if news else min(pause_ms * 5 // 4, REFRESH_MAX_MS)
            await asyncio.sleep(pause_ms / 1000)

    async def topic(self, name: str, timeout_s: float = math.inf) -> TopicDescription:
        """The topic, looked up if it is not known yet; part of every refresh as long as it exists.

        A topic that is being created may not have reached every broker. A client that spreads its
        questions asks for `unknown_topic_timeout_ms`; a sticky one asks every broker once.

        Raises MisuseError(INVALID_TOPIC_NAME), ClusterError(UNKNOWN_TOPIC), UnreachableError;
        after `timeout_s` at the latest.
        """
        limit = loop_time_s() + timeout_s
        patience_s = 0.0 if self._sticky else self.config.unknown_topic_timeout_ms / 1000
        deadline = min(limit, loop_time_s() + patience_s)
        while (topic := self.view.topics.get(name)) is None:
            validate_topic_name(name)
            await self.refresh(limit - loop_time_s(), (name,))
            if self._sticky and self._is_unknown(name):
                await self._ask_the_others(name, limit)
            if name in self.view.topics:
                continue
            unknown = self._is_unknown(name)
            if not unknown or loop_time_s() >= deadline:
                raise _unknown_topic(name) if unknown else self._topic_errors[name]
            await asyncio.sleep(self.config.retry_backoff_ms / 1000)
        self._topics.add(name)
        return topic

    def _is_unknown(self, name: str) -> bool:
        """Whether the last answer knew no such topic; another broker may."""
        error = self._topic_errors.get(name)
        unknown = error is None or error.code is ErrorCode.UNKNOWN_TOPIC
        return unknown and name not in self.view.topics

    async def _ask_the_others(self, name: str, limit: float) -> None:
        """Until one knows the topic, or every broker that answers has said that it does not."""
        favourite = self._answered_last
        denied: set[str] = set()
        async with self._refreshing:
            while self._is_unknown(name) and self._taught_by not in denied:
                denied.add(self._taught_by)
                if denied.issuperset(self._candidates()):
                    break
                await self._refresh(limit - loop_time_s(), (name,), frozenset(denied))
        if self._is_unknown(name):
            self._answered_last = favourite  # nothing was learned: keep using its answers

    async def await_other_topic(self, name: str, topic_id: str) -> None:
        """Waits until the view has a topic of this name with an id other than `topic_id`, or none.

        Raises ClusterError(TOPIC_ID_MISMATCH) after `unknown_topic_timeout_ms`.
        """
        deadline = loop_time_s() + self.config.unknown_topic_timeout_ms / 1000
        while True:
            topic = (await self.refresh(topics=(name,))).topics.get(name)
            if topic is None or topic.topic_id != topic_id:
                return
            if loop_time_s() >= deadline:
                raise ClusterError(
                    f"topic {name!r} was created again, but the brokers that were asked still "
                    f"know the old one (id {topic_id}); try again",
                    ErrorCode.TOPIC_ID_MISMATCH,
                )
            await asyncio.sleep(self.config.retry_backoff_ms / 1000)

    def forget_topic(self, name: str) -> None:
        """Stops asking for a topic."""
        self._topics.discard(name)

    def learn_leader(self, partition: TopicPartition, leader: CurrentLeader) -> None:
        """Adopts what an error says about the leader, if it is newer."""
        self._change(self.view.with_leader(partition, leader))

    async def ask(
        self,
        call: "Call[Answer]",
        timeout_s: float,
        *,
        patience_s: float = FIRST_ATTEMPT_S,
        final: frozenset[ErrorCode] = frozenset(),
        avoid: frozenset[str] = frozenset(),
    ) -> Answer:
        """Gets an answer from any broker: asks one after the other, repeatedly, until the timeout.

        Args:
            call: One attempt.
            timeout_s: Of all attempts together.
            patience_s: With one address, in the first round; doubles with each round.
            final: Codes that are not tried again here, though they may be elsewhere.
            avoid: Addresses that are asked after all others.

        Raises a broker's error if a retry cannot help; after `timeout_s` the last error of a
        broker, or UnreachableError if none answered. If the cluster has never answered and nothing
        listens at its addresses, gives up after `REFUSED_S`.
        """
        began = loop_time_s()
        deadline = began + timeout_s
        reasons: dict[str, PenstockError] = {}
        while True:
            throttle_ms = 0
            for address in self._candidates(avoid):
                remaining_s = deadline - loop_time_s()
                if remaining_s <= 0:
                    break
                attempt_s = min(patience_s, remaining_s)
                try:
                    answer = await call(self.connections.to(address), attempt_s)
                except PenstockError as error:
                    self._note_failure(address, error, final)
                    if isinstance(error, ThrottledError):
                        throttle_ms = max(throttle_ms, error.throttle_ms)
                    _keep_word(reasons, address, error)
                else:
                    self._suspects.pop(address, None)
                    self._silent.clear()
                    self._answered_last = address
                    return answer
            pause_s = min(patience_s / 10, self.config.retry_backoff_max_ms / 1000)
            pause_s = max(pause_s, throttle_ms / 1000)
            if not self._answered_last and _all_refused(reasons):
                deadline = min(deadline, began + REFUSED_S)
            if not self._answered_last:
                await self._diagnose(reasons)
            if loop_time_s() + pause_s >= deadline:
                raise _nobody_answered(reasons, self._candidates(), timeout_s)
            await asyncio.sleep(pause_s)
            patience_s = min(patience_s * 2, timeout_s)

    async def _diagnose(self, reasons: dict[str, PenstockError]) -> None:
        """Raises UnreachableError, once, if it is plain that no address here can ever answer."""
        unclear = [a for a, error in reasons.items() if not _is_refusal(error)]
        if self._diagnosed or not unclear or len(unclear) < len(reasons):
            return
        self._diagnosed = True
        connections = [self.connections.to(address) for address in unclear]
        async with asyncio.TaskGroup() as group:  # each takes seconds where nobody speaks
            looks = [group.create_task(connection.diagnosis()) for connection in connections]
        for look in looks:
            if (found := look.result()) is not None:
                self._diagnosed = False
                raise found

    async def aclose(self) -> None:
        await self.connections.aclose()

    def _candidates(self, avoid: frozenset[str] = frozenset()) -> list[str]:
        known = self.view.addresses()
        self._shuffle(known)
        addresses = list(dict.fromkeys([*known, *self._bootstrap]))
        now = loop_time_s()

        def rank(address: str) -> tuple[bool, bool, bool]:
            other = self._sticky and address != self._answered_last
            return self._suspects.get(address, 0.0) > now, address in avoid, other

        return sorted(addresses, key=rank)

    def _note_failure(
        self, address: str, error: PenstockError, final: frozenset[ErrorCode]
    ) -> None:
        """Remembers brokers that do not answer. Raises the error if asking another broker cannot
        help."""
        if is_silence(error):
            self._suspects[address] = loop_time_s() + SUSPECT_S
            self._silent[address] = error
        elif not error.retriable or error.code in final:
            raise error

    def _learn(self, answer: pb.MetadataResponse, asked: frozenset[str]) -> None:
        self._topic_errors = {
            info.topic: error_from_wire(info.error)
            for info in answer.topics
            if info.HasField("error")
        }
        self._change(self.view.merge(view_from_wire(answer), asked))

    def _change(self, view: MetadataSnapshot) -> None:
        if view == self.view:
            return
        self.view = view
        self.connections.learn(view.brokers.values())
        for listener in self._listeners:
            listener()


_UNRESOLVED: Final = ("errors resolving ", "DNS resolution failed")
"""How gRPC begins when it has found no address of a name."""


def is_silence(error: PenstockError) -> bool:
    """Whether a call ended without an answer, so that it is unknown if it had an effect."""
    return isinstance(error, UnreachableError) or error.code is ErrorCode.REQUEST_TIMED_OUT


def _unknown_topic(name: str) -> ClusterError:
    return ClusterError(
        f"topic {name!r} does not exist, or you may not see it; check the name, create it "
        "(producing or consuming never creates topics), or ask an administrator for Describe",
        ErrorCode.UNKNOWN_TOPIC,
    )


def _is_refusal(error: PenstockError) -> bool:
    """Whether nothing listens there, or a broker has answered."""
    return not is_silence(error) or (isinstance(error, UnreachableError) and error.refused)


def _all_refused(reasons: dict[str, PenstockError]) -> bool:
    """Whether nothing listens at any address that was tried."""
    return bool(reasons) and all(
        isinstance(error, UnreachableError) and error.refused for error in reasons.values()
    )


def _keep_word(reasons: dict[str, PenstockError], address: str, error: PenstockError) -> None:
    """The last error of each address, in order of time; no answer does not replace an earlier
    error.

    The last attempt is cut off by the caller's timeout, and has no answer for that reason alone.
    """
    before = reasons.get(address)
    if before is None or is_silence(before) or not is_silence(error):
        reasons.pop(address, None)
        reasons[address] = error


def _nobody_answered(
    reasons: dict[str, PenstockError], addresses: Iterable[str], timeout_s: float
) -> PenstockError:
    """One error for all attempts: the cluster's last error, or a list of addresses and reasons."""
    spoken = [error for error in reasons.values() if not is_silence(error)]
    if spoken:
        last = spoken[-1]
        return ClusterError(f"{last.message} (tried for {round(timeout_s, 1):g} s)", last.code)
    listed = "; ".join(
        f"{address} ({_short(address, reasons.get(address))})" for address in addresses
    )
    refused = _all_refused(reasons)
    what = "nothing listens" if refused else f"no broker answered within {round(timeout_s, 1):g} s"
    return UnreachableError(
        f"{what}: {listed}; check the bootstrap addresses and that the cluster is running",
        refused=refused,
    )


def _short(address: str, error: PenstockError | None) -> str:
    """The reason without the words that every line would repeat."""
    if error is None:
        return "not tried"
    text = error.message.removeprefix(f"{address}: ").rpartition("last error: ")[2]
    text = text.rpartition("remote host: ")[2]
    if text.startswith(_UNRESOLVED):
        return "this name has no address; gRPC says: " + text.rpartition(": ")[2].rstrip("]")
    return text if len(text) <= 120 else text[:117] + "..."

"""A broker's part in transactions under simulation: coordinator, joins, Ends.

    replica ─ Ready.joins ─▶ coordinator (asked again, elsewhere, until it answers) ─▶ rc.Joined
    coordinator ─ SendEnds ─▶ leader of each partition ─ EndRequested ─▶ marker ─▶ FinishedHeard

The coordinator is the production machine, hosted by `hosting`. Every call may come late, twice,
far behind the next transaction, or never: what repeats them is the production rule, what delays
them is chance. `transaction_checks` hears of every step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from penstock.core.replication import contract_leader as lc
from penstock.core.transactions import TransactionConfig, TransactionCoordinator
from penstock.core.transactions import contract as tc
from penstock.core.transactions.config import TRANSACTIONS_TOPIC
from penstock.core.transactions.records import GroupParticipant, PartitionParticipant
from penstock.core.types import ReplicaKey, TopicId
from penstock.errors import ClusterError, ErrorCode, PenstockError
from penstock_sim.hosting import BASE_TIME_MS, Hosts, SimHost

if TYPE_CHECKING:
    from penstock_broker.replication.replica import Replica
    from penstock_sim.broker import SimBroker
    from penstock_sim.shell import Shell
    from penstock_sim.world import World

TRANSACTIONS_KEY: Final = ReplicaKey(TopicId("00000000-0000-4000-8000-000000000003"), 0)
CONFIG: Final = TransactionConfig(
    default_timeout_ms=300,
    park_ms=150,
    retry_min_ms=15,
    retry_max_ms=80,
    finished_flush_ms=50,
    visible_wait_max_ms=200,
    sweep_interval_ms=1_000,
)
CALL_TIMEOUT_MS: Final = 120
LATE_MS: Final = 600
"""A copy of a call comes up to so much later: by then other transactions have begun and ended."""
_JOIN_ATTEMPTS: Final = 6
_END_DEADLINE_MS: Final = 200


class TransactionHost(SimHost):
    """One leadership of the transactions partition on one run of a broker."""

    trace_word = "transactions"

    def __init__(self, broker: SimBroker, replica: Replica) -> None:
        super().__init__(broker, replica, TransactionCoordinator(CONFIG, BASE_TIME_MS))
        self.shadow: dict[bytes, bytes | None] = {}
        """The log as this coordinator has read and written it."""
        self._requests: dict[int, Callable[[Any], None]] = {}
        self.moved()

    def _load(self, key: bytes | None, value: bytes | None) -> None:
        assert key is not None
        self.machine.load(key, value)
        self.shadow[key] = value

    def _start(self) -> tc.Ready:
        ready: tc.Ready = self.machine.start(self.now_ms())
        return ready

    def _began(self) -> None:
        self.tell_gone()

    def tell_gone(self) -> None:
        """Topics that this broker knows to be deleted."""
        deleted = self.broker.session.deleted
        if deleted:
            self.handle(tc.TopicsGone(frozenset(deleted)))

    def _decided(self, ready: tc.Ready) -> None:
        self.shadow.update(ready.records)
        self._world.transaction_checks.decided(self, ready)

    def _appended(self) -> None:
        pass

    def _is_idle_tick(self, event: tc.Event, ready: tc.Ready) -> bool:
        return ready is tc.NOTHING and event == tc.Tick()

    def tick(self) -> None:
        """Called often: what is due."""
        if self.loaded and self.closed is None and self.machine.next_wake_ms <= self.now_ms():
            self.handle(tc.Tick())

    def ask(self, event: tc.Request, respond: Callable[[Any], None]) -> None:
        """`respond` gets the answer, or an error, once."""
        self._requests[event.request_id] = respond
        try:
            self.handle(event)
        except PenstockError as error:
            del self._requests[event.request_id]
            respond(error)

    def _tell(self, output: tc.Output) -> None:
        if isinstance(output, tc.Reply):
            self._requests.pop(output.request_id)(output.answer)
            return
        world = self._world
        if world.chaotic and world.transactions is not None and world.transactions.strikes_here():
            # Decided and committed, and nobody has heard: the next coordinator must tell them.
            world.scheduler.after(0.001, world.transactions.kill, self.broker)
            return
        for end in output.entries:
            self._send(end)

    def _send(self, end: tc.End) -> None:
        world, participant = self._world, end.participant
        if isinstance(participant, GroupParticipant):
            self.broker.group_link.end(end, self._heard)
            return
        key = ReplicaKey(participant.topic_id, participant.partition)
        target = world.find_leader(key)[0]

        def stored(reply: lc.ProduceReply) -> None:
            if reply.error is None:
                world.transaction_checks.marked(target, key, end, reply)
                world.net.call(target.id, self.broker.id, self._heard, end)

        args = (int(self.broker.id), int(target.id), target.end_transaction, key, end, stored)
        world.net.call(*args)
        if world.scheduler.chance(0.05):
            world.scheduler.after(world.scheduler.between(1, LATE_MS), world.net.call, *args)

    def _heard(self, end: tc.End) -> None:
        if self.loaded and self.closed is None:
            self.handle(tc.FinishedHeard(end.participant, end.producer_id, end.producer_epoch))

    def _refuse_all(self, error: PenstockError) -> None:
        for respond in self._requests.values():
            respond(error)
        self._requests.clear()


class TransactionHosts(Hosts[TransactionHost]):
    """A run of a broker: its coordinator while it leads the transactions partition."""

    topic = TRANSACTIONS_TOPIC

    def _host(self, replica: Replica) -> TransactionHost:
        return TransactionHost(self.broker, replica)

    def image_changed(self) -> None:
        """The broker was told who leads what."""
        current = self.current
        if current is not None and current.loaded and current.closed is None:
            current.handle(tc.ImageChanged(frozenset(self.broker.session.topics)))
            current.tell_gone()

    def ask(self, event: tc.Request, respond: Callable[[Any], None]) -> None:
        """A unary call. No answer if the process is dead."""
        if self._dead:
            return
        try:
            found = self.find()
        except PenstockError as error:
            respond(error)
        else:
            found.ask(event, respond)


def ask_coordinator(
    world: World, source: int, make: Callable[[int], tc.Request], respond: Callable[[Any], None]
) -> None:
    """A call from `source` to whoever coordinates, by what some broker knows; perhaps twice.

    No answer comes when it gets lost, or the coordinator dies.
    """
    broker = world.find_leader(TRANSACTIONS_KEY)[0]

    def answered(answer: Any) -> None:
        world.net.call(int(broker.id), source, respond, answer)

    def arrive(answered: Callable[[Any], None]) -> None:
        if broker.transactions is not None:
            broker.transactions.ask(make(world.next_request()), answered)

    world.net.call(source, int(broker.id), arrive, answered)
    if world.scheduler.chance(0.06):
        late_ms = world.scheduler.between(1, LATE_MS)
        world.scheduler.after(late_ms, arrive, lambda _answer: None)


class Joining:
    """One `JoinRequest` of a replica: asked until the coordinator has answered."""

    def __init__(self, broker: SimBroker, replica: Replica, request: lc.JoinRequest) -> None:
        self.broker = broker
        self.replica = replica
        self.request = request
        self._incarnation = broker.incarnation
        self._attempt = 0
        self._done = False
        self._ask()

    def _ask(self) -> None:
        if self._done or not self._is_here():
            return
        self._attempt += 1
        if self._attempt > _JOIN_ATTEMPTS:
            self._tell(ClusterError("no coordinator answers", ErrorCode.REQUEST_TIMED_OUT))
            return
        request, key, world = self.request, self.replica.key, self.broker.world
        ask_coordinator(
            world,
            int(self.broker.id),
            lambda number: tc.JoinRequested(
                request_id=number,
                transactional_id=request.transactional_id,
                producer_id=request.producer_id,
                producer_epoch=request.producer_epoch,
                participant=PartitionParticipant(key.topic_id, key.partition),
            ),
            self._answered,
        )
        world.scheduler.after(CALL_TIMEOUT_MS, self._ask_again, self._attempt)

    def _ask_again(self, attempt: int) -> None:
        if attempt == self._attempt:
            self._ask()

    def _answered(self, answer: tc.Joined | PenstockError) -> None:
        elsewhere = {ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOADING}
        if isinstance(answer, PenstockError) and answer.code in elsewhere:
            delay_ms = self.broker.world.scheduler.between(5, 40)
            self.broker.world.scheduler.after(delay_ms, self._ask_again, self._attempt)
        else:
            self._tell(answer if isinstance(answer, PenstockError) else None)

    def _tell(self, error: PenstockError | None) -> None:
        self._done = True
        if self._is_here():
            self.broker.handle(self.replica, lc.Joined(self.request.number, error))

    def _is_here(self) -> bool:
        broker = self.broker
        return (
            broker.up
            and broker.incarnation == self._incarnation
            and broker.replicas.get(self.replica.key) is self.replica
        )


def end_event(request_id: int, end: tc.End, now_ms: int, shell: Shell) -> lc.EndRequested:
    """What the leader of a participant hears."""
    return lc.EndRequested(
        request_id=request_id,
        producer_id=end.producer_id,
        producer_epoch=end.producer_epoch,
        commit=end.commit,
        timestamp_ms=BASE_TIME_MS + now_ms,
        deadline_ms=shell.deadline_ms(_END_DEADLINE_MS),
    )

"""A member of a consumer group as a process: its stream, its clock, and its faults.

The production `Membership` decides; this is `client/group/link.py` in virtual time. `reading` is
the consumer beside it. A process can be killed, and frozen: then nothing of it runs, neither timers
nor arrivals, until it is thawed and handles them all at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from penstock.client.config import ConsumerConfig
from penstock.client.group.contract import (
    Event,
    Heard,
    Heartbeat,
    Hello,
    HelloSaid,
    Leave,
    Ready,
    StreamEnded,
    Subscribed,
    Tick,
    Timing,
    Wish,
)
from penstock.client.group.membership import Membership, Phase
from penstock.client.group.wire import hello_to_wire, said_to_wire
from penstock.core.groups import contract as gc
from penstock.errors import ClusterError, ErrorCode, Lost, PenstockError, UnreachableError
from penstock_sim.coordinator import OFFSETS_KEY
from penstock_sim.member_stream import ClientNode, JoinStream
from penstock_sim.reading import Reader
from penstock_sim.scheduler import RATE, RuleError

if TYPE_CHECKING:
    from penstock_sim.world import World

_PATIENCE_MS: Final = 250
"""How long to wait for a hello, and for one attempt of a call; by the world's clock."""
_RETRY_MS: Final = 8
_NO_END: Final = frozenset({ErrorCode.OFFSET_WENT_BACK, ErrorCode.UNSPECIFIED})
"""What a member is told though it still is one: a commit that goes back, and what gRPC itself says
of a stream that broke."""


@dataclass(frozen=True, slots=True)
class MemberPlan:
    """What kind of member. `session_ms`, `max_poll_ms`: of a node's clock; others: of the world.

    record_wise: takes records one by one, and can leave its loop at any record.
    """

    group_id: str
    topic: str
    instance_id: str
    automatic: bool
    record_wise: bool
    session_ms: int
    max_poll_ms: int
    work_ms: float
    commit_every_ms: float


class SimMember:
    """One consumer process, and later its replacement."""

    def __init__(self, world: World, number: int, plan: MemberPlan) -> None:
        self.world = world
        self.node = 1000 + number
        self.name = f"m{number}"
        self.plan = plan
        self.up = False
        self.frozen = False
        self.life = 0
        self.member_id = ""
        self._ids = 0
        self._config = ConsumerConfig(
            group_id=plan.group_id,
            group_instance_id=plan.instance_id,
            session_timeout_ms=plan.session_ms,
            max_poll_interval_ms=plan.max_poll_ms,
        )
        self._held: list[tuple[bool, Callable[..., None], tuple[Any, ...]]] = []

    @property
    def transactional_id(self) -> str:
        """Its open transaction ends with the membership; "": none."""
        return ""

    def _new_reader(self) -> Reader:
        return Reader(self)

    # ------------------------------------------------------------ process

    def start(self) -> None:
        """Starts a new process, which subscribes."""
        assert not self.up
        self.up = True
        self.life += 1
        self.member_id = ""
        timing = Timing(self.plan.session_ms, self.plan.max_poll_ms, 20, 200)
        self.membership = Membership(timing, is_static=bool(self.plan.instance_id))
        self.stream: JoinStream | None = None
        self._process = ClientNode(self.world, self.node, f"{self.name}.{self.life}")
        self._opening = 0
        self._wakes = 0
        self.world.scheduler.note(self.name, "start", self.plan)
        self.reader = self._new_reader()
        self.handle(Subscribed(Wish((self.plan.topic,))))
        self.reader.start()

    def kill(self) -> None:
        """kill -9."""
        assert self.up
        self.world.scheduler.note(self.name, "kill")
        self.reader.stop()
        self.up = self.frozen = False
        self._held.clear()
        self._close()
        self._process.kill()

    def freeze(self) -> None:
        """SIGSTOP."""
        self.world.scheduler.note(self.name, "freeze")
        self.frozen = True

    def thaw(self) -> None:
        """SIGCONT: timers and arrivals are handled at once, in either order."""
        if not self.frozen:
            return
        self.world.scheduler.note(self.name, "thaw")
        self.frozen = False
        held, self._held = self._held, []
        timers_first = self.world.scheduler.chance(0.5)
        held.sort(key=lambda entry: entry[0] is not timers_first)
        for is_timer, callback, args in held:
            self._run(self.life, is_timer, callback, args)

    def later(self, delay_ms: float, callback: Callable[..., None], *args: Any) -> None:
        """A timer of this process."""
        self.world.scheduler.after(delay_ms, self._run, self.life, True, callback, args)

    def arrives(self, callback: Callable[..., None], *args: Any) -> None:
        """Something has arrived from the network for this process."""
        self._run(self.life, False, callback, args)

    def _run(
        self, life: int, is_timer: bool, callback: Callable[..., None], args: tuple[Any, ...]
    ) -> None:
        if not self.up or life != self.life:
            return
        if self.frozen:
            self._held.append((is_timer, callback, args))
        else:
            callback(*args)

    # ------------------------------------------------------------ membership

    @property
    def now_ms(self) -> int:
        """Of a node's clock."""
        return self.world.scheduler.now_us * RATE // 1000

    @property
    def silence_ms(self) -> tuple[int, int]:
        """Of a node's clock: since it has heard something, and since it has said something."""
        membership = self.membership
        return self.now_ms - membership._heard_ms, self.now_ms - membership._sent_ms

    def handle(self, event: Event) -> None:
        """Passes an event to the machine and carries out its `Ready`, in the order of the
        fields."""
        ready = self.membership.handle(event, self.now_ms)
        if self.world.scheduler.traced and not isinstance(event, Tick | Heard):
            self.world.scheduler.note(self.name, str(event), ready.notice)
        self._obey(ready)

    def _obey(self, ready: Ready) -> None:
        if ready.close:
            self._close()
        if ready.lost:
            self.reader.lose(ready.lost)
        if ready.revoke:
            self.reader.revoke(ready.revoke)
        if ready.take:
            self.reader.take(ready.take)
        for said in ready.send:
            self._say(said)
        if ready.open is not None:
            self._open(ready.open)
        if ready.failed is not None:
            # A static member whose instance id is in use: its user tries again.
            self.later(60, self.handle, Subscribed(Wish((self.plan.topic,))))
        self._wakes += 1
        if ready.wake_at_ms is not None:
            delay_ms = (ready.wake_at_ms - self.now_ms) / RATE
            self.later(max(0.25, delay_ms), self._wake, self._wakes)

    def _wake(self, number: int) -> None:
        if number == self._wakes:
            self.handle(Tick(self.reader.assignment.yielded))

    def _say(self, said: Heartbeat | Leave) -> None:
        if self.stream is not None:
            self.stream.say(said_to_wire(said))

    # ------------------------------------------------------------ stream

    def _close(self) -> None:
        self._opening += 1
        stream, self.stream = self.stream, None
        if stream is not None:
            stream.close()

    def _open(self, hello: Hello) -> None:
        self._close()
        if hello.new_member_id or not self.member_id:
            self._ids += 1
            self.member_id = f"{self.name}.{self._ids}"
        self.later(self.world.net.delay_ms(), self._connect, hello, self._opening)

    def _connect(self, hello: Hello, opening: int) -> None:
        if opening != self._opening:
            return
        broker, _ = self.world.find_leader(OFFSETS_KEY)
        first = hello_to_wire(hello, self._config, self.member_id, self.world.cluster_id)
        first.hello.transactional_id = self.transactional_id
        stream = JoinStream(self._process, broker.id, first, self._heard_of, self._ended_of)
        self.stream = stream
        self.handle(HelloSaid())
        self.later(_PATIENCE_MS, self._no_answer, stream)

    def _no_answer(self, stream: JoinStream) -> None:
        if self.stream is stream and self.membership.phase in (Phase.JOINING, Phase.LEAVING):
            self._end(ClusterError("no answer to a join", ErrorCode.REQUEST_TIMED_OUT))

    def _heard_of(self, stream: JoinStream, message: Event) -> None:
        self.arrives(self._heard, stream, message)

    def _ended_of(self, stream: JoinStream, error: PenstockError | None) -> None:
        self.arrives(self._broken, stream, error)

    def _heard(self, stream: JoinStream, message: Event) -> None:
        if stream is self.stream:
            self.handle(message)

    def _broken(self, stream: JoinStream, error: PenstockError | None) -> None:
        if stream is not self.stream:
            return
        if error is None and self.membership.phase is not Phase.LEAVING:
            error = UnreachableError("the coordinator ended the stream")
        self._end(error)

    def judge(self, error: PenstockError) -> None:
        """Only what ends a membership, or a position behind the committed one, is refused for
        good: everything else heals without the user (I24)."""
        if not (error.retriable or error.lost is Lost.MEMBERSHIP or error.code in _NO_END):
            raise RuleError(f"I24: {self.name} is refused for good: {error.code.name}: {error}")

    def _end(self, error: PenstockError | None) -> None:
        if error is not None and not isinstance(error, UnreachableError):
            self.judge(error)
        self._close()
        self.handle(StreamEnded(error))

    # ------------------------------------------------------------ calls

    def call(
        self,
        make: Callable[[int], gc.Request],
        deadline_ms: float,
        then: Callable[[Any], None],
    ) -> None:
        """Calls the coordinator until it answers or the deadline (by the world's clock) passes."""
        _Call(self, make, deadline_ms, then).attempt()


class _Call:
    """A unary call, retried as `client/cluster/coordinator.py` does."""

    def __init__(
        self,
        member: SimMember,
        make: Callable[[int], gc.Request],
        deadline_ms: float,
        then: Callable[[Any], None],
    ) -> None:
        self._member = member
        self._make = make
        self._deadline_ms = deadline_ms
        self._then = then
        self._attempt = 0
        self._life = member.life

    def attempt(self) -> None:
        """Makes one more attempt."""
        member, world = self._member, self._member.world
        self._attempt += 1
        number = self._attempt
        broker, _ = world.find_leader(OFFSETS_KEY)
        request = self._make(world.next_request())

        def respond(answer: Any) -> None:
            world.net.call(broker.id, member.node, arrived, answer)

        def arrived(answer: Any) -> None:
            if member.life == self._life:
                member.arrives(self._answered, number, answer)

        if broker.coordinators is not None:
            world.net.call(member.node, broker.id, broker.coordinators.ask, request, respond)
            if world.chaotic and world.scheduler.chance(0.02):
                # A copy of it arrives at any time.
                copy = self._make(world.next_request())
                world.scheduler.after(
                    world.scheduler.between(1, 300), broker.coordinators.ask, copy, _ignore
                )
        member.later(_PATIENCE_MS, self._answered, number, UnreachableError("no answer"))

    def _answered(self, number: int, answer: Any) -> None:
        if number != self._attempt:
            return
        again = isinstance(answer, PenstockError) and (
            answer.retriable or isinstance(answer, UnreachableError)
        )
        if again and self._member.world.scheduler.now_ms < self._deadline_ms:
            self._attempt += 1
            self._member.later(_RETRY_MS, self.attempt)
            return
        self._attempt += 1
        self._then(answer)


def _ignore(_answer: Any) -> None:
    """No caller waits for it."""

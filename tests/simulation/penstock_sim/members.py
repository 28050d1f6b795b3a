"""A member of a consumer group as a process: its event loops, and its faults.

`consumer` is what ships, `reading` the program that uses it. A process can be killed, and frozen:
then nothing of it runs, neither timers nor arrivals, until it is thawed and handles them all at
once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from penstock.client.config import ConsumerConfig
from penstock.client.group.membership import Membership
from penstock.errors import ErrorCode, Lost, PenstockError
from penstock_sim.client_node import ClientNode
from penstock_sim.reading import Reader
from penstock_sim.scheduler import RATE, RuleError

if TYPE_CHECKING:
    from penstock_sim.world import World

_PATIENCE_MS: Final = 3_200
"""How long a call to the coordinator is retried, and a hello waited for; of a node's clock."""
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
        self._ids = 0
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
        plan, name = self.plan, f"{self.name}.{self.life}"
        self.config = ConsumerConfig(
            group_id=plan.group_id,
            group_instance_id=plan.instance_id,
            session_timeout_ms=plan.session_ms,
            max_poll_interval_ms=plan.max_poll_ms,
            auto_offset_reset="earliest",
            on_offset_out_of_range="earliest",
            transactional_id=self.transactional_id,
            request_timeout_ms=_PATIENCE_MS,
            enable_auto_commit=plan.automatic,
            auto_commit_interval_ms=max(1, int(plan.commit_every_ms * RATE)),
        )
        self.user = ClientNode(self.world, self.node, f"{name} user")
        self.heart = ClientNode(self.world, self.node, f"{name} heartbeats")
        self.world.scheduler.note(self.name, "start", plan)
        self.reader = self._new_reader()
        self.reader.start()

    def kill(self) -> None:
        """kill -9."""
        assert self.up
        self.world.scheduler.note(self.name, "kill")
        self.reader.stop()
        self.up = self.frozen = False
        self._held.clear()
        self.user.kill()
        self.heart.kill()

    def freeze(self) -> None:
        """SIGSTOP."""
        self.world.scheduler.note(self.name, "freeze")
        self.frozen = True
        self.user.loop.paused = self.heart.loop.paused = True

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
        for node in self.world.scheduler.random.sample((self.user, self.heart), 2):
            node.loop.resume()

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
    def membership(self) -> Membership | None:
        """See `SimConsumer`."""
        return self.reader.consumer.membership

    @property
    def silence_ms(self) -> tuple[int, int]:
        """Of a node's clock: since it has heard something, and since it has said something."""
        now_ms, membership = int(self.heart.loop.time() * 1000), self.membership
        assert membership is not None
        return now_ms - membership._heard_ms, now_ms - membership._sent_ms

    def new_member_id(self) -> str:
        """Never one of a process before."""
        self._ids += 1
        return f"{self.name}.{self._ids}"

    def judge(self, error: PenstockError) -> None:
        """Only what ends a membership, or a position behind the committed one, is refused for
        good: everything else heals without the user (I24)."""
        if not (error.retriable or error.lost is Lost.MEMBERSHIP or error.code in _NO_END):
            raise RuleError(f"I24: {self.name} is refused for good: {error.code.name}: {error}")

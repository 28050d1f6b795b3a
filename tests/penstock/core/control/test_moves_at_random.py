"""Moves under anything that can happen to them: every write keeps the rules, and all of them end.

`support.moving` checks each write: the document's rules, I29, versions. Here events come in any
order: requests, deaths, lost disks, damage, journals, lost answers, other controllers.
"""

from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st
from support.controller_world import World
from support.moving import change, document, ids, moving_world

from penstock.core.control import contract as c
from penstock.core.control import move_contract as m
from penstock.core.types import NO_LEADER, BrokerId, ReplicaKey
from penstock.errors import ErrorCode, PenstockError

BROKERS = range(5)
BROKER = st.sampled_from(BROKERS)
TARGET = st.lists(BROKER, min_size=1, max_size=3, unique=True)
STEP = st.one_of(
    st.tuples(st.just("move"), TARGET),
    st.tuples(st.just("cancel"), st.just(0)),
    st.tuples(st.just("tick"), st.just(0)),
    st.tuples(st.just("propose"), st.frozensets(BROKER)),
    st.tuples(st.just("propose"), st.just(frozenset(BROKERS))),
    st.tuples(st.just("kill"), BROKER),
    st.tuples(st.just("start"), BROKER),
    st.tuples(st.just("lose"), BROKER),
    st.tuples(st.just("replace"), BROKER),
    st.tuples(st.just("drop"), BROKER),
    st.tuples(st.just("damage"), BROKER),
    st.tuples(st.just("mend"), BROKER),
    st.tuples(st.just("journal"), st.booleans()),
    st.tuples(st.just("lose_an_answer"), st.booleans()),
    st.tuples(st.just("take_over"), st.just(0)),
)


class Story:
    """A world with one partition, and what was last asked of it."""

    def __init__(self, min_isr: str) -> None:
        self.world = moving_world(min_insync_replicas=min_isr)
        self.runs = 1
        self.wanted: tuple[int, ...] = (0, 1, 2)
        self.unanswered: bool | None = None

    def step(self, what: str, value: object) -> None:
        play: Callable[[object], None] = getattr(self, what)
        play(value)

    # ------------------------------------------------------------ people

    def move(self, target: object) -> None:
        assert isinstance(target, list)
        self._ask(change(self.world, *target), tuple(target))

    def cancel(self, _: object) -> None:
        replicas = tuple(document(self.world).state.replicas)
        wanted = m.ReplicaChange(topic="t", partition=0, cancel=True)
        self._ask(wanted, replicas)

    def _ask(self, wanted: m.ReplicaChange, becomes: tuple[int, ...]) -> None:
        before = document(self.world)
        answer = self.world.ask(m.AlterReplicas, changes=(wanted,), change_factor=True)
        if isinstance(answer, PenstockError):
            assert answer.code is ErrorCode.MOVES_PAUSED
            return
        assert isinstance(answer, m.ReplicasAltered)
        if answer.outcomes[0].error is None:
            self.wanted = becomes
            if wanted.cancel:
                after = document(self.world)
                kept = (before.state.replicas, before.state.isr, before.elr)
                assert (after.state.replicas, after.state.isr, after.elr) == kept

    # ------------------------------------------------------------ brokers

    def propose(self, members: object) -> None:
        assert isinstance(members, frozenset)
        state = document(self.world).state
        if state.leader == NO_LEADER or state.leader not in self.world.streams:
            return
        allowed = {*state.replicas} & members | {state.leader}
        if {*state.adding} <= members:
            allowed |= {*state.adding}
        isr = tuple(one for one in (*state.replicas, *state.adding) if one in allowed)
        if self.unanswered is not None:
            self._unanswered_proposal(isr)
        else:
            self.world.alter_isr(state.leader, isr)

    def _unanswered_proposal(self, isr: tuple[int, ...]) -> None:
        passed, self.unanswered = self.unanswered, None
        self.world.hold_writes = True
        found = self.world.topic()
        state = found.partitions[0].state
        proposal = c.IsrChange(
            topic_id=found.topic_id,
            partition=0,
            leader_epoch=state.leader_epoch,
            version=state.version,
            isr=ids(*isr),
        )
        self.world.step(
            c.AlterIsr(
                request_id=self.world.new_id(),
                cluster_id="",
                broker_id=state.leader,
                broker_session=self.world.session(state.leader),
                controller_epoch=self.world.machine.epoch,
                changes=(proposal,),
            )
        )
        if self.world.held is not None:
            self.world.finish_held(passed=bool(passed), answered=False)
        self.world.hold_writes = False

    def kill(self, broker: object) -> None:
        if broker in self.world.streams:
            self.world.kill(_int(broker))

    def start(self, broker: object) -> None:
        self._register(_int(broker))

    def lose(self, broker: object) -> None:
        self._register(_int(broker), data_intact=False)

    def replace(self, broker: object) -> None:
        self.kill(broker)
        self.runs += 1
        self._register(_int(broker), directory_id=f"disk-{broker}-{self.runs}")

    def _register(self, broker: int, **fields: object) -> None:
        self.runs += 1
        known = self.world.cluster().brokers[BrokerId(broker)]
        given = {"directory_id": known.directory_id, **fields}
        self.world.register(broker, run=self.runs, **given)

    def drop(self, broker: object) -> None:
        found = self.world.topic()
        version = found.partitions[0].state.version
        one = m.DroppedReplica(found.topic_id, 0, version)
        self._report(_int(broker), dropped=(one,))

    def damage(self, broker: object) -> None:
        self._report(_int(broker), damaged=(ReplicaKey(self.world.topic().topic_id, 0),))

    def mend(self, broker: object) -> None:
        self._report(_int(broker), sound=(ReplicaKey(self.world.topic().topic_id, 0),))

    def _report(self, broker: int, **fields: object) -> None:
        if broker in self.world.streams:
            self.world.ask(
                m.ReportReplicas,
                broker_id=BrokerId(broker),
                broker_session=self.world.session(broker),
                **fields,
            )

    # ------------------------------------------------------------ controllers

    def tick(self, _: object) -> None:
        self.world.pass_time(1_100)

    def journal(self, journaling: object) -> None:
        self.world.step(c.StoreState(journaling=bool(journaling)))

    def lose_an_answer(self, passed: object) -> None:
        self.unanswered = bool(passed)

    def take_over(self, _: object) -> None:
        brokers = dict(self.world.streams)
        self.world = World(self.world.documents, self.world.config).start()
        for broker in brokers:
            self._register_again(broker)

    def _register_again(self, broker: int) -> None:
        known = self.world.cluster().brokers[BrokerId(broker)]
        self.world.register(broker, incarnation=known.incarnation, directory_id=known.directory_id)

    # ------------------------------------------------------------ the end

    def heal(self) -> None:
        self.world.step(c.StoreState(journaling=False))
        for broker in BROKERS:
            self._register(broker)
            self.mend(broker)
        for _ in range(8):
            for broker in BROKERS:
                self.drop(broker)
            self.world.pass_time(1_100)
            self.propose(frozenset(BROKERS))


def _int(broker: object) -> int:
    assert isinstance(broker, int)
    return broker


@given(steps=st.lists(STEP, min_size=1, max_size=25), min_isr=st.sampled_from(["1", "2"]))
@settings(max_examples=150, deadline=None)
def test_whatever_happens_every_write_keeps_the_rules_and_every_move_ends(
    steps: list[tuple[str, object]], min_isr: str
) -> None:
    story = Story(min_isr)
    for what, value in steps:
        story.step(what, value)
    story.heal()
    found = document(story.world)
    if found.state.leader == NO_LEADER:
        return  # every holder has lost its data, and no unclean election is allowed
    assert found.target == (), found
    assert set(found.state.replicas) == set(story.wanted), (found, story.wanted)
    assert (found.state.adding, found.state.dropping) == ((), ())
    assert set(found.state.isr) == set(story.wanted)
    assert found.elr == ()

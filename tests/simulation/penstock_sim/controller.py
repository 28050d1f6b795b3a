"""A controller's shell under simulation, and the metadata store it writes to.

The production `ControllerMachine` decides; writes go to a store with compare-and-swap, take time,
and sometimes end with an unknown outcome: done, partly done, not done, or done later. In every
second seed brokers keep a journal while the store is away (journal.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from penstock.core.control import contract as cc
from penstock.core.control.config import ControlConfig
from penstock.core.control.documents import (
    CLUSTER_KEY,
    TOPIC_KEY_PREFIX,
    ClusterDocument,
    TopicDocument,
    decode_cluster,
    decode_topic,
    encode_cluster,
    encode_topic,
    topic_key,
)
from penstock.core.control.machine import ControllerMachine, Phase
from penstock.core.control.storage import (
    Change,
    Delete,
    StoredText,
    StoreUnavailableError,
    WriteConflictError,
)
from penstock.core.defect import raise_defect
from penstock.errors import PenstockError
from penstock_broker.controller.loading import from_texts, to_change
from penstock_sim.journal import JournalShell
from penstock_sim.network import Stream
from penstock_sim.session import HEARTBEAT_MS, SESSION_TIMEOUT_MS

if TYPE_CHECKING:
    from penstock_sim.checks import Checks
    from penstock_sim.world import World

_TICK_MS = 40
_LEASE_MS = 50
_HOLD_AFTER_MS = 60


class MetaStore:
    """Documents with versions; every write is a compare-and-swap. Never loses anything."""

    def __init__(self, checks: Checks) -> None:
        self.documents: dict[str, tuple[Any, str]] = {}
        self.away: set[int] = set()
        """Controllers that cannot reach it."""
        self._checks = checks
        self._versions = 0

    def apply(self, write: cc.DocumentWrite) -> tuple[str, str] | None:
        """The key and its new version; None on a conflict."""
        document: TopicDocument | ClusterDocument | None
        if isinstance(write, cc.RemoveTopic):
            key, document = topic_key(write.name), None
        elif isinstance(write, cc.PutTopic):
            key, document = topic_key(write.document.name), write.document
        else:
            key, document = CLUSTER_KEY, write.document
        stored = self.documents.get(key)
        if (None if stored is None else stored[1]) != write.expected:
            return None
        self._versions += 1
        version = str(self._versions)
        if document is None:
            del self.documents[key]
        else:
            self.documents[key] = (document, version)
        if isinstance(write, cc.RemoveTopic):
            self._checks.topic_removed(write.name)
        elif isinstance(document, TopicDocument):
            self._checks.metadata_changed(document)
        elif isinstance(document, ClusterDocument):
            self._checks.registrations_changed(document)
        return key, version

    def apply_text(self, change: Change, *, learned: bool = False) -> tuple[str, str] | None:
        """`apply` for a change of a text. `learned`: what a journal tells who takes over."""
        write: cc.DocumentWrite
        if isinstance(change, Delete):
            write = cc.RemoveTopic(change.key.removeprefix(TOPIC_KEY_PREFIX), change.expected)
        elif change.key == CLUSTER_KEY:
            write = cc.PutCluster(decode_cluster(change.text, change.key), change.expected)
        else:
            write = cc.PutTopic(decode_topic(change.text, change.key), change.expected)
        self._checks.learning = learned
        try:
            return self.apply(write)
        finally:
            self._checks.learning = False

    def texts(self) -> dict[str, StoredText]:
        """Everything, consistently, as text."""
        return {
            key: StoredText(
                encode_topic(found) if isinstance(found, TopicDocument) else encode_cluster(found),
                version,
            )
            for key, (found, version) in self.documents.items()
        }

    def load(self) -> cc.Loaded:
        """Everything, consistently."""
        topics = tuple(
            (document, version)
            for document, version in self.documents.values()
            if isinstance(document, TopicDocument)
        )
        cluster = self.documents.get(CLUSTER_KEY)
        assert cluster is None or isinstance(cluster[0], ClusterDocument)
        return cc.Loaded(cluster, topics, "simulated-cluster")


class SimController:
    """One controller process: `up` while it runs, with or without the lead."""

    def __init__(self, world: World, node: int) -> None:
        self.world = world
        self.id = node
        self.name = f"c{node}"
        self.up = False
        self.life = 0
        self._machine: ControllerMachine | None = None
        self._journal: JournalShell | None = None
        self._away_since_ms: float | None = None
        self._streams: dict[int, Stream] = {}
        self._sent: dict[int, int] = {}
        self._waiting: dict[int, Callable[[Any], None]] = {}

    @property
    def active(self) -> bool:
        return self._machine is not None and self._machine.phase is Phase.ACTIVE

    @property
    def epoch(self) -> int:
        return self._machine.epoch if self._machine is not None else 0

    def start(self) -> None:
        """A new process that takes the lead."""
        assert not self.up
        self.up = True
        self.life += 1
        self._journal = JournalShell(self) if self.world.journal else None
        self._away_since_ms = None
        self.world.scheduler.note(self.name, "start")
        self._new_machine()
        self._tick(self.life)
        if self._journal is not None:
            self._lease(self.life, self._journal)

    def _new_machine(self) -> None:
        """Begins to take over."""
        self._streams, self._sent, self._waiting = {}, {}, {}
        self._machine = ControllerMachine(
            ControlConfig(
                heartbeat_interval_ms=HEARTBEAT_MS,
                session_timeout_ms=SESSION_TIMEOUT_MS,
                session_grace_ms=40,
                preferred_leader_interval_ms=600,
                tick_gap_ms=200,
            )
        )
        self._load_soon(self._machine)

    def kill(self) -> None:
        """Everything but the store is gone."""
        assert self.up
        self.up = False
        self.world.scheduler.note(self.name, "kill")
        self._machine = None
        self._break_streams()

    def _break_streams(self) -> None:
        for stream in self.world.net.streams:
            if stream.acceptor == self.id:
                stream.break_off(silent_for=self.id)

    def is_alive(self, life: int) -> bool:
        """This run of the process still is."""
        return self.up and self.life == life

    def _tick(self, life: int) -> None:
        if self.is_alive(life):
            self.handle(cc.Tick())
            self.world.scheduler.after(_TICK_MS, self._tick, life)

    def _lease(self, life: int, journal: JournalShell) -> None:
        """Renews it as far as the store answers; else the brokers stand in for it."""
        if not self.is_alive(life):
            return
        scheduler, documents = self.world.scheduler, journal.documents
        if self.id not in self.world.meta.away:
            self._away_since_ms = None
            documents.lease_answered()
            if self.active and (documents.detached or self._lost_the_lease()):
                scheduler.note(self.name, "takes over anew")
                self._break_streams()
                self._new_machine()
        elif self._away_since_ms is None:
            self._away_since_ms = scheduler.now_ms
        elif scheduler.now_ms - self._away_since_ms > _HOLD_AFTER_MS and self._may_hold(journal):
            journal.run_beside(documents.hold(), _ignore)
        scheduler.after(_LEASE_MS, self._lease, life, journal)

    def _may_hold(self, journal: JournalShell) -> bool:
        machine = self._machine
        return machine is not None and (machine.settled or journal.documents.detached)

    def _lost_the_lease(self) -> bool:
        """Another had it and asked for promises, but is gone before it has taken over."""
        others = [one for one in self.world.controllers.values() if one is not self and one.up]
        promised = max(broker.keeper.holder.promised for broker in self.world.brokers.values())
        return not others and promised > self.epoch

    def _load_soon(self, machine: ControllerMachine) -> None:
        self.world.scheduler.after(self.world.scheduler.between(1, 15), self._load, machine)

    def _load(self, machine: ControllerMachine) -> None:
        if not self.up or machine is not self._machine:
            return
        if self._journal is not None:
            self._load_journaled(machine, self._journal)
        elif self.id in self.world.meta.away:
            self._load_soon(machine)
        else:
            self.handle(self.world.meta.load())

    def _load_journaled(self, machine: ControllerMachine, journal: JournalShell) -> None:
        def loaded(found: Any) -> None:
            if not self.up or machine is not self._machine:
                return
            if isinstance(found, PenstockError):
                self._load_soon(machine)
            else:
                self.handle(from_texts(found, "simulated-cluster", None))

        def read() -> Any:
            if machine.phase is not Phase.ACTIVE:
                journal.documents.begin_take_over()
            return journal.documents.read()

        journal.run(read, loaded)

    def handle(self, event: cc.Event) -> None:
        """Event in, `Ready` out, obeyed."""
        machine, scheduler = self._machine, self.world.scheduler
        assert machine is not None
        ready = machine.handle(event, scheduler.now_ms)
        raise_defect(ready.stopped)
        for decision in ready.decisions:
            scheduler.note(self.name, decision.event, dict(decision.fields))
        if ready.reload:
            self._load_soon(machine)
        if ready.writes and self._journal is not None:
            self._write_journaled(machine, self._journal, ready.write_id, ready.writes)
        elif ready.writes:
            delay_ms = scheduler.between(1, 10)
            scheduler.after(delay_ms, self._write, machine, ready.write_id, ready.writes)
        for reply in ready.replies:
            self._waiting.pop(reply.request_id, _ignore)(reply.outcome)
        for message in ready.session_messages:
            self._tell(message)
        if ready.metadata_version is not None:
            for number in tuple(self._sent):
                self._send_image(number)
        if ready.deposed:
            self.kill()

    def _tell(self, message: cc.SessionMessage) -> None:
        stream = self._streams.get(message.stream_id)
        if stream is not None:
            stream.send(self.id, message)
            if isinstance(message, cc.SessionAccepted):
                self._sent[message.stream_id] = 0
                self._send_image(message.stream_id)

    def _send_image(self, number: int) -> None:
        machine, stream = self._machine, self._streams.get(number)
        if machine is not None and stream is not None:
            image = machine.image(self._sent[number])
            self._sent[number] = image.metadata_version
            stream.send(self.id, image)

    # ------------------------------------------------------------ store

    def _write(self, machine: ControllerMachine, write_id: int, stages: tuple[Any, ...]) -> None:
        """Carried out even if the controller died meanwhile: the request is on its way."""
        writes = [write for stage in stages for write in stage]
        self._store_answers(
            writes, self.world.meta.apply, lambda found: self._report(machine, write_id, found)
        )

    def _write_journaled(
        self, machine: ControllerMachine, journal: JournalShell, write_id: int, stages: Any
    ) -> None:
        changes = [[to_change(write) for write in stage] for stage in stages]
        journal.run(
            lambda: journal.documents.write(changes),
            lambda found: self._report(machine, write_id, found),
        )

    def carry_out(self, changes: list[Change], answered: Callable[[Any], None]) -> None:
        """The same for texts; `answered` gets versions, or the error."""
        learned = not self.active
        self._store_answers(
            changes, lambda change: self.world.meta.apply_text(change, learned=learned), answered
        )

    def _store_answers(
        self,
        writes: list[Any],
        apply: Callable[[Any], tuple[str, str] | None],
        answered: Callable[[Any], None],
    ) -> None:
        scheduler = self.world.scheduler
        unknown = StoreUnavailableError("no answer")
        if self.id in self.world.meta.away:
            if self.world.journal and self.world.chaotic and scheduler.chance(0.4):
                # Only the way back is cut.
                scheduler.after(scheduler.between(1, 60), self._write_late, writes, apply)
            answered(unknown)
            return
        doubt = scheduler.random.random() if self.world.chaotic else 1.0
        if doubt < 0.01:
            scheduler.after(scheduler.between(1, 60), self._write_late, writes, apply)
            answered(unknown)
            return
        done = writes[: scheduler.random.randrange(len(writes) + 1)] if doubt < 0.03 else writes
        versions = {}
        for write in done:
            outcome = apply(write)
            if outcome is None:
                answered(WriteConflictError("a document", None, None))
                return
            versions[outcome[0]] = outcome[1]
        answered(unknown if doubt < 0.05 else versions)

    def _write_late(
        self, writes: list[Any], apply: Callable[[Any], tuple[str, str] | None]
    ) -> None:
        for write in writes:
            if apply(write) is None:
                return

    def _report(self, machine: ControllerMachine, write_id: int, found: Any) -> None:
        event: cc.Event
        if isinstance(found, WriteConflictError):
            event = cc.WriteConflict(write_id)
        elif isinstance(found, PenstockError):
            event = cc.WriteUnknown(write_id)
        else:
            event = cc.WriteDone(write_id, found)
        self.world.scheduler.after(self.world.scheduler.between(0.1, 5), self._hear, machine, event)

    def _hear(self, machine: ControllerMachine, event: cc.Event) -> None:
        if self.up and machine is self._machine:
            self.handle(event)
            if isinstance(event, cc.WriteDone):
                self.world.checks.adopted(machine.stored.topics.values())

    # ------------------------------------------------------------ brokers

    def receive(self, stream: Stream, message: Any) -> None:
        """A broker's registration or heartbeat."""
        if self.up:
            self._streams[stream.number] = stream
            self.handle(message)

    def stream_broken(self, stream: Stream) -> None:
        """A broker's session stream is gone."""
        if self.up:
            self._streams.pop(stream.number, None)
            self._sent.pop(stream.number, None)
            self.handle(cc.StreamClosed(stream.number))

    def request(self, request: cc.Request, respond: Callable[[Any], None]) -> None:
        """A call of a broker or a client; `respond` gets the outcome, if there is one."""
        if self.up:
            self._waiting[request.request_id] = respond
            self.handle(request)


def _ignore(_outcome: Any) -> None:
    """The caller is gone."""

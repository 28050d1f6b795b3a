"""A controller's shell under simulation, and the metadata store it writes to.

The production `ControllerMachine` decides; writes go to a store with compare-and-swap, take time,
and sometimes end with an unknown outcome: done, partly done, not done, or done later.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from penstock.core.control import contract as cc
from penstock.core.control.config import ControlConfig
from penstock.core.control.documents import (
    CLUSTER_KEY,
    ClusterDocument,
    TopicDocument,
    topic_key,
)
from penstock.core.control.machine import ControllerMachine, Phase
from penstock_sim.network import Stream
from penstock_sim.session import HEARTBEAT_MS, SESSION_TIMEOUT_MS

if TYPE_CHECKING:
    from penstock_sim.checks import Checks
    from penstock_sim.world import World

_TICK_MS = 40


class MetaStore:
    """Documents with versions; every write is a compare-and-swap. Never loses anything."""

    def __init__(self, checks: Checks) -> None:
        self.documents: dict[str, tuple[Any, str]] = {}
        self.away = False
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
        if isinstance(document, TopicDocument):
            self._checks.metadata_changed(document)
        elif isinstance(document, ClusterDocument):
            self._checks.registrations_changed(document)
        return key, version

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
        self.world.scheduler.note(self.name, "start")
        self._load_soon(self.life)
        self._tick(self.life)

    def kill(self) -> None:
        """Everything but the store is gone."""
        assert self.up
        self.up = False
        self.world.scheduler.note(self.name, "kill")
        self._machine = None
        for stream in self.world.net.streams:
            if stream.acceptor == self.id:
                stream.break_off(silent_for=self.id)

    def _alive(self, life: int) -> bool:
        return self.up and self.life == life

    def _tick(self, life: int) -> None:
        if self._alive(life):
            self.handle(cc.Tick())
            self.world.scheduler.after(_TICK_MS, self._tick, life)

    def _load_soon(self, life: int) -> None:
        self.world.scheduler.after(self.world.scheduler.between(1, 15), self._load, life)

    def _load(self, life: int) -> None:
        if not self._alive(life):
            return
        if self.world.meta.away:
            self._load_soon(life)
        else:
            self.handle(self.world.meta.load())

    def handle(self, event: cc.Event) -> None:
        """Event in, `Ready` out, obeyed."""
        machine, scheduler = self._machine, self.world.scheduler
        assert machine is not None
        ready = machine.handle(event, scheduler.now_ms)
        for decision in ready.decisions:
            scheduler.note(self.name, decision.event, dict(decision.fields))
        if ready.reload:
            self._load_soon(self.life)
        if ready.writes:
            delay_ms = scheduler.between(1, 10)
            scheduler.after(delay_ms, self._write, self.life, ready.write_id, ready.writes)
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

    def _write(self, life: int, write_id: int, stages: tuple[Any, ...]) -> None:
        """Carried out even if the controller died meanwhile: the request is on its way."""
        scheduler, meta = self.world.scheduler, self.world.meta
        if meta.away:
            self._report(life, cc.WriteUnknown(write_id))
            return
        writes = [write for stage in stages for write in stage]
        doubt = scheduler.random.random() if self.world.chaotic else 1.0
        if doubt < 0.01:
            scheduler.after(scheduler.between(1, 60), self._write_late, writes)
            self._report(life, cc.WriteUnknown(write_id))
            return
        done = writes[: scheduler.random.randrange(len(writes) + 1)] if doubt < 0.03 else writes
        versions = {}
        for write in done:
            outcome = meta.apply(write)
            if outcome is None:
                self._report(life, cc.WriteConflict(write_id))
                return
            versions[outcome[0]] = outcome[1]
        if doubt < 0.05:
            self._report(life, cc.WriteUnknown(write_id))
        else:
            self._report(life, cc.WriteDone(write_id, versions))

    def _write_late(self, writes: list[Any]) -> None:
        for write in writes:
            if self.world.meta.apply(write) is None:
                return

    def _report(self, life: int, event: cc.Event) -> None:
        self.world.scheduler.after(self.world.scheduler.between(0.1, 5), self._hear, life, event)

    def _hear(self, life: int, event: cc.Event) -> None:
        if self._alive(life):
            self.handle(event)

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

"""A controller machine under a fake clock, with documents in a dict and brokers as one-liners.

`World.step` feeds an event and obeys the Ready as contract.py demands; after every write the
invariants of the documents are checked (I1, I21).
"""

from dataclasses import dataclass, field, replace
from typing import Any

from penstock.core.control import ControlConfig, ControllerMachine, Phase
from penstock.core.control import contract as c
from penstock.core.control.documents import (
    CLUSTER_KEY,
    FORMATS,
    ClusterDocument,
    TopicDocument,
    decode_cluster,
    decode_topic,
    encode_cluster,
    encode_topic,
    topic_key,
)
from penstock.core.defect import raise_defect
from penstock.core.types import NO_LEADER, BrokerId, LeaderEpoch, TopicId


@dataclass
class Documents:
    """The metadata store: key -> (text, version). Shared by the machines of a test."""

    texts: dict[str, tuple[str, str]] = field(default_factory=dict)
    count: int = 0

    def loaded(self) -> c.Loaded:
        cluster = None
        topics = []
        for key, (text, version) in self.texts.items():
            if key == CLUSTER_KEY:
                cluster = (decode_cluster(text, key), version)
            else:
                topics.append((decode_topic(text, key), version))
        return c.Loaded(cluster, tuple(topics), "the-cluster")

    def write(self, stages: tuple[tuple[c.DocumentWrite, ...], ...]) -> dict[str, str] | None:
        """All or nothing; None = conflict."""
        keyed = [(_key(write), write) for stage in stages for write in stage]
        if any(self.texts.get(key, ("", None))[1] != write.expected for key, write in keyed):
            return None
        self.count += 1
        versions = {}
        for key, write in keyed:
            match write:
                case c.PutCluster():
                    text = encode_cluster(write.document)
                case c.PutTopic():
                    text = encode_topic(write.document)
                case c.RemoveTopic():
                    del self.texts[key]
                    continue
            self._check_history(key, text)
            versions[key] = f"v{self.count}"
            self.texts[key] = (text, versions[key])
        return versions

    def _check_history(self, key: str, text: str) -> None:
        """Epochs and versions never go back; one leader per epoch; the leader is in the ISR."""
        if key == CLUSTER_KEY:
            return
        after = decode_topic(text, key)
        before = decode_topic(self.texts[key][0], key) if key in self.texts else None
        for index, partition in enumerate(after.partitions):
            state = partition.state
            assert state.leader == NO_LEADER or state.leader in state.isr
            assert set(state.isr) <= set(state.replicas)
            groups = [*state.isr, *partition.elr, *partition.lossy]
            assert len(groups) == len(set(groups)), "ISR, ELR and lossy must be disjoint"
            if before is None or before.topic_id != after.topic_id:
                continue
            if index < len(before.partitions):
                old = before.partitions[index].state
                assert state.leader_epoch >= old.leader_epoch
                assert state.version >= old.version
                if state.leader_epoch == old.leader_epoch:
                    assert state.leader == old.leader
                if (state.leader, state.isr) != (old.leader, old.isr):
                    assert state.version > old.version


def _key(write: c.DocumentWrite) -> str:
    match write:
        case c.PutCluster():
            return CLUSTER_KEY
        case c.PutTopic():
            return topic_key(write.document.name)
        case c.RemoveTopic():
            return topic_key(write.name)


class World:
    """One machine, its clock and its brokers' streams."""

    def __init__(self, documents: Documents | None = None, config: ControlConfig | None = None):
        self.documents = documents or Documents()
        self.config = config or ControlConfig()
        self.machine = ControllerMachine(self.config)
        self.now_ms = 10_000
        self.replies: dict[int, c.Result | Exception] = {}
        self.messages: dict[int, list[c.SessionMessage]] = {}
        self.decisions: list[c.Decision] = []
        self.versions: list[int] = []
        self.held: c.Ready | None = None
        self.hold_writes = False
        self.deposed = False
        self.takes_over_again = False
        self.writes = 0
        self.loads = 0
        """How often it has asked to read the documents."""
        self.streams: dict[int, int] = {}
        self._ids = 0

    # ---------------------------------------------------------------- driving

    def start(self) -> "World":
        self.step(self.documents.loaded())
        assert self.machine.phase is Phase.ACTIVE
        return self

    def step(self, event: c.Event) -> c.Ready:
        """Feeds one event and obeys, until nothing is left to do."""
        ready = self.machine.handle(event, self.now_ms)
        raise_defect(ready.stopped)
        self._note(ready)
        if ready.writes:
            if self.hold_writes:
                assert self.held is None, "two writes at once"
                self.held = ready
            else:
                self.finish(ready)
        return ready

    def finish(self, ready: c.Ready) -> None:
        self.writes += 1
        versions = self.documents.write(ready.writes)
        if versions is None:
            self.step(c.WriteConflict(ready.write_id))
        else:
            self.step(c.WriteDone(ready.write_id, versions))

    def finish_partly(self, stages: int, *, survives: bool = True) -> None:
        """Only the first stages of the held write are carried out; the answer is unknown.

        `survives` False: the controller dies with it.
        """
        ready, self.held = self.held, None
        assert ready is not None
        self.hold_writes = False
        self.documents.write(ready.writes[:stages])
        if survives:
            self.step(c.WriteUnknown(ready.write_id))

    def finish_held(self, *, passed: bool, answered: bool, late: bool = False) -> None:
        """Ends the held write: carried out or not, known or not.

        `late`: it is carried out (if nothing came in between) after everyone gave it up.
        """
        ready, self.held = self.held, None
        assert ready is not None
        self.hold_writes = False
        if late:
            self.step(c.WriteUnknown(ready.write_id))
            self.documents.write(ready.writes)
            return
        versions = self.documents.write(ready.writes) if passed else None
        if answered and versions is not None:
            self.step(c.WriteDone(ready.write_id, versions))
        elif answered:
            self.step(c.WriteConflict(ready.write_id))
        else:
            self.step(c.WriteUnknown(ready.write_id))

    def withhold(self) -> None:
        """The shell does not begin the held write: it would go into a journal."""
        ready, self.held = self.held, None
        assert ready is not None
        assert ready.stored_only
        self.hold_writes = False
        self.step(c.WriteNotSent(ready.write_id))

    def _note(self, ready: c.Ready) -> None:
        for reply in ready.replies:
            assert reply.request_id not in self.replies, "two replies to one request"
            self.replies[reply.request_id] = reply.outcome
        for message in ready.session_messages:
            self.messages.setdefault(message.stream_id, []).append(message)
        self.decisions += ready.decisions
        if ready.metadata_version is not None:
            assert not self.versions or ready.metadata_version > self.versions[-1]
            self.versions.append(ready.metadata_version)
        self.deposed = self.deposed or ready.deposed
        self.takes_over_again = self.takes_over_again or ready.take_over_again
        if ready.reload:
            self.loads += 1
            self.step(self.documents.loaded())

    def new_id(self) -> int:
        self._ids += 1
        return self._ids

    def pass_time(self, duration_ms: int, *, beating: bool = True) -> None:
        """Ticks of 50 ms; every broker with a stream sends heartbeats meanwhile."""
        end_ms = self.now_ms + duration_ms
        while self.now_ms < end_ms:
            self.now_ms = min(self.now_ms + 50, end_ms)
            if beating:
                for stream_id in list(self.streams.values()):
                    self.step(c.HeartbeatReceived(stream_id=stream_id, metadata_version=0))
            self.step(c.Tick())

    # ---------------------------------------------------------------- brokers

    def register(self, broker_id: int, run: int = 1, **changes: Any) -> int:
        """Registers and returns the stream id; the broker then heartbeats in `pass_time`."""
        stream_id = self.new_id()
        event = c.BrokerRegistered(
            stream_id=stream_id,
            cluster_id="",
            broker_id=BrokerId(broker_id),
            incarnation=f"run-{broker_id}-{run}",
            host="127.0.0.1",
            port=7000 + broker_id,
            rack="",
            directory_id=f"dir-{broker_id}",
            data_intact=True,
            formats=FORMATS,
        )
        self.step(replace(event, **changes))
        accepted = any(
            isinstance(message, c.SessionAccepted) for message in self.messages.get(stream_id, [])
        )
        if accepted:
            self.streams[broker_id] = stream_id
        return stream_id

    def register_all(self, *broker_ids: int) -> None:
        for broker_id in broker_ids:
            self.register(broker_id)

    def session(self, broker_id: int) -> int:
        """The broker's session number, for AlterIsr."""
        session = self.machine.sessions.get(BrokerId(broker_id))
        assert session is not None
        return session.number

    def kill(self, *broker_ids: int) -> None:
        """kill -9: the streams break and nobody comes back."""
        for broker_id in broker_ids:
            self.step(c.StreamClosed(self.streams.pop(broker_id)))
        self.pass_time(self.config.session_grace_ms + 50)

    def kill_together(self, *broker_ids: int) -> None:
        """As a power cut: nobody sees the others die."""
        for broker_id in broker_ids:
            self.step(c.StreamClosed(self.streams.pop(broker_id)))
        self.now_ms += self.config.session_grace_ms + 50
        self.step(c.Tick())

    def refusal(self, stream_id: int) -> Exception:
        """Why the stream was refused."""
        found = [
            message
            for message in self.messages.get(stream_id, [])
            if isinstance(message, c.SessionRefused)
        ]
        assert found, self.messages.get(stream_id)
        return found[-1].error

    # ---------------------------------------------------------------- requests

    def create(self, name: str = "t", **fields: Any) -> c.TopicOutcome:
        request_id = self.new_id()
        topic = c.NewTopic(name=name, topic_id=TopicId(f"id-{name}-{request_id}"), **fields)
        self.step(c.CreateTopics(request_id, "", (topic,)))
        result = self.replies[request_id]
        assert isinstance(result, c.TopicsChanged), result
        return result.outcomes[0]

    def ask(self, kind: type, **fields: Any) -> c.Result | Exception:
        """Sends any request and returns its outcome; the cluster id is left empty."""
        request_id = self.new_id()
        self.step(kind(request_id=request_id, cluster_id="", **fields))
        return self.replies[request_id]

    def alter_isr(
        self, leader: int, isr: tuple[int, ...], topic: str = "t", **changes: Any
    ) -> c.IsrOutcome:
        """The leader proposes an ISR for partition 0 of a topic."""
        document = self.topic(topic)
        state = document.partitions[0].state
        change = c.IsrChange(
            topic_id=document.topic_id,
            partition=0,
            leader_epoch=LeaderEpoch(state.leader_epoch),
            version=state.version,
            isr=tuple(BrokerId(member) for member in isr),
        )
        request = c.AlterIsr(
            request_id=self.new_id(),
            cluster_id="",
            broker_id=BrokerId(leader),
            broker_session=self.session(leader),
            controller_epoch=self.machine.epoch,
            changes=(replace(change, **changes),),
        )
        self.step(request)
        result = self.replies[request.request_id]
        assert isinstance(result, c.IsrAltered), result
        return result.outcomes[0]

    # ---------------------------------------------------------------- looking

    def topic(self, name: str = "t") -> TopicDocument:
        found = self.machine.topic(name)
        assert found is not None
        return found

    def cluster(self) -> ClusterDocument:
        return self.machine.stored.cluster

    def state(self, partition: int = 0, topic: str = "t") -> tuple[int, int, tuple[int, ...]]:
        """(leader, leader epoch, ISR)."""
        state = self.topic(topic).partitions[partition].state
        return state.leader, state.leader_epoch, state.isr

    def events(self) -> list[str]:
        return [decision.event for decision in self.decisions]

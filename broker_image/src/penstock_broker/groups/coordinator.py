"""The groups of one offsets partition: a machine on its log, and the streams of its members.

    Ready.outputs, once committed ─▶ tell ─┬─ Reply ────────────────▶ the caller of `ask`
                                           ├─ SendJoin, SendAbort ──▶ the transaction's coordinator
                                           └─ all others ───────────▶ the member's stream

Loading, appending, waiting for the high watermark and the end: `logged.host`. A member that does
not read its messages loses its stream; when a coordinator ends, its members get the reason.
"""

from collections.abc import Callable
from functools import partial

from penstock.core.groups import GroupConfig, GroupCoordinator
from penstock.core.groups.catalog import Catalog
from penstock.core.groups.contract import (
    Answer,
    EndStream,
    Event,
    Ready,
    Reply,
    SendAbort,
    SendAssignment,
    SendJoin,
    SendJoined,
    StreamBroken,
    Tick,
    TopicsChanged,
    TransactionJoined,
)
from penstock.errors import ClusterError, ErrorCode, PenstockError
from penstock_broker.clock import Clock
from penstock_broker.groups.streams import MemberStream
from penstock_broker.groups.transactions import TransactionLink
from penstock_broker.logged.host import MachineHost
from penstock_broker.logged.log import PartitionLog
from penstock_broker.observability import EventLog

_events = EventLog("groups")


class Coordinator(MachineHost[Event, Ready, Answer]):
    """See the module."""

    def __init__(
        self,
        log: PartitionLog,
        clock: Clock,
        config: GroupConfig,
        catalog: Callable[[], Catalog],
        on_ready: Callable[[Ready], None],
        transactions: TransactionLink,
    ) -> None:
        """`catalog`: the topics that groups may read now; `on_ready` gets every Ready."""
        self.machine = GroupCoordinator(config, clock.wall.look().ms - clock.now_ms())
        super().__init__(log, clock, self.machine, Tick(), _events)
        self._catalog = catalog
        self._on_ready = on_ready
        self._transactions = transactions
        self._streams: dict[int, MemberStream] = {}

    def begin(self, now_ms: int) -> Ready:
        """Starts the machine with the current topics."""
        return self.machine.start(self._catalog(), now_ms)

    def decided(self, ready: Ready) -> None:
        """For the metrics of all coordinators here."""
        self._on_ready(ready)

    def topics_changed(self, catalog: Catalog) -> None:
        """Names, ids or partition counts changed."""
        if self.serving:
            self.handle(TopicsChanged(catalog))

    # ------------------------------------------------------------ members

    def add_stream(self, stream: MemberStream) -> None:
        """The machine's messages to this stream go to its member."""
        self._streams[stream.stream_id] = stream

    def drop_stream(self, stream: MemberStream) -> None:
        """The stream has ended: nothing more is sent on it."""
        self._streams.pop(stream.stream_id, None)
        if self.serving:
            self.handle(StreamBroken(stream.stream_id))

    def tell(self, ready: Ready) -> None:
        """Sends answers, and messages to members."""
        for output in ready.outputs:
            match output:
                case Reply():
                    self.answer(output.request_id, output.answer)
                case SendJoin():
                    self._transactions.join(output, partial(self._joined, output))
                case SendAbort():
                    self._transactions.abort(output)
                case _:
                    self._tell_member(output)

    def _joined(self, join: SendJoin, error: PenstockError | None) -> None:
        """A coordinator that has ended meanwhile has already answered its callers."""
        if self.serving:
            self.handle(
                TransactionJoined(
                    group_id=join.group_id,
                    transactional_id=join.transactional_id,
                    producer_id=join.producer_id,
                    number=join.number,
                    error=error,
                )
            )

    def _tell_member(self, output: SendJoined | SendAssignment | EndStream) -> None:
        stream = self._streams.get(output.stream_id)
        if stream is not None and not stream.put(output):
            stream.fail(
                ClusterError(
                    "the member does not read the coordinator's messages; join again",
                    ErrorCode.OVERLOADED,
                )
            )

    def ended(self, error: PenstockError) -> None:
        """Ends all streams: members then find the next coordinator."""
        for stream in self._streams.values():
            stream.fail(error)
        self._streams.clear()

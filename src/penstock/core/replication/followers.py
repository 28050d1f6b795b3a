"""Who may follow a leader, and what each of them has: kept in step with the partition's state.

    newer state ─▶ learn ─┬─ new ones begin with nothing
                          ├─ former ones are fed no more
                          └─ versions were missed ─▶ who is not in the ISR has to begin again

Progress is counted in `isr.FollowerProgress`; what follows from it is the leader's.
"""

from __future__ import annotations

from penstock.core.replication.contract_leader import Feed, SendRefusal
from penstock.core.replication.isr import FollowerProgress, InSyncReplicas
from penstock.core.replication.local_log import LocalLog
from penstock.core.replication.outbox import Outbox
from penstock.core.types import BrokerId, LeaderEpoch, Offset
from penstock.errors import ClusterError, ErrorCode


class Followers(dict[BrokerId, FollowerProgress]):
    """By broker, of one leadership. Owned by the leader."""

    def __init__(
        self, local: BrokerId, epoch: LeaderEpoch, log: LocalLog, isr: InSyncReplicas, now_ms: int
    ) -> None:
        super().__init__()
        self._local = local
        self._epoch = epoch
        self._log = log
        self._isr = isr
        self._welcome(now_ms)

    def learn(self, former_version: int, out: Outbox, now_ms: int) -> None:
        """The ISR's state is newer than `former_version`."""
        self._welcome(now_ms)
        self._dismiss(out)
        if self._isr.state.version > former_version + 1:
            self._doubt(out)

    def _welcome(self, now_ms: int) -> None:
        """The time to catch up starts when a follower, or this leadership, begins."""
        for broker in self._isr.followers:
            if broker != self._local and broker not in self:
                progress = FollowerProgress(
                    caught_up_ms=now_ms, seen_end=self._log.log_end, seen_ms=now_ms
                )
                if broker not in self._isr.committed:
                    progress.since = self._isr.state.version
                self[broker] = progress

    def _dismiss(self, out: Outbox) -> None:
        """Who is no replica any more, and not to become one, is neither counted nor fed."""
        for broker, progress in tuple(self.items()):
            if broker not in self._isr.followers:
                self.stop_feed(broker, progress, out)
                del self[broker]

    def _doubt(self, out: Outbox) -> None:
        """Versions were missed in which who is not in the ISR may have been told to delete its
        data, and then to copy again: what it has said counts no more."""
        for broker, progress in self.items():
            if broker not in self._isr.committed:
                progress.since = self._isr.state.version
                if progress.started:
                    self._begin_again(broker, progress, out)

    def knows_enough(
        self, broker: BrokerId, progress: FollowerProgress, version: int, out: Outbox
    ) -> bool:
        """Whether who starts to follow at this version (0: it does not say) still has what it says;
        else it is refused."""
        if 0 < version < progress.since:
            self._begin_again(broker, progress, out)
            return False
        return True

    def _begin_again(self, broker: BrokerId, progress: FollowerProgress, out: Outbox) -> None:
        self.stop_feed(broker, progress, out)
        refusal = ClusterError(
            f"broker {broker} may have deleted this replica before version {progress.since} of the "
            "partition: look up the divergence again, and follow once that version is known",
            ErrorCode.INELIGIBLE_REPLICA,
        )
        out.messages.append(SendRefusal(broker, refusal))

    def stop_feed(self, broker: BrokerId, progress: FollowerProgress, out: Outbox) -> None:
        """It is sent no more, until it starts to follow again."""
        if progress.started:
            progress.started = False
            out.feeds.append(Feed(broker, self._epoch, None))

    # ------------------------------------------------------------ what they have

    def written(self) -> list[tuple[BrokerId, Offset]]:
        """Of every follower, up to where it has said that it has the log, in this epoch."""
        known = list(self.items())
        return [(broker, progress.written_end) for broker, progress in known]

    def written_by(self, broker: BrokerId) -> Offset:
        """Its last acknowledgement in this epoch, even if its stream has broken since; or 0."""
        progress = self.get(broker)
        return Offset(0) if progress is None else progress.written_end

    @property
    def copied_to(self) -> Offset | None:
        """Up to where the slowest has it on disk of those that the partition moves to; None: to
        nobody."""
        known = (self.get(one) for one in self._isr.state.adding)
        return min((Offset(0) if one is None else one.synced_end for one in known), default=None)

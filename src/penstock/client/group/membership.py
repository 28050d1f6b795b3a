"""A member of a consumer group, as a machine: what it may own, what it sends, when it has lost
partitions.

    shell (link.py) ──events──▶ Membership.handle ──▶ Ready: open, send, revoke, take, lost
    coordinator's word:  MemberAssignment = all the member may own, numbered per stream
    the member's own:    owned ⊇ what it reads; gives up first, then says so (I18)

Pure: no clock, no stream, no callbacks. KIP-848's member side:

- Partitions that an assignment lacks are put into `revoking` and passed to the consumer, which
  stops reading them, lets its user commit, and answers with `Released`. Only then is the
  coordinator told that they are given up. Partitions that an assignment adds are owned at once;
  those it keeps are not affected.
- A broken stream changes nothing: the member comes back with its id and epoch. It has lost
  everything when the coordinator says so, or when it got no message for a session timeout.
- A consumer that was not polled for `max_poll_interval_ms` leaves, so that others get its
  partitions, and joins again with the next poll.
- A leave that no coordinator has confirmed is sent again to the next one: otherwise, the partitions
  of a member that left would be unread for a session timeout. For the same reason, a member that
  leaves between its hello and the answer waits for the answer and then leaves (KIP-1082).
"""

from enum import Enum

from penstock.client.group.contract import (
    NONE,
    Assigned,
    Event,
    Farewell,
    Fenced,
    Heard,
    Heartbeat,
    Hello,
    HelloSaid,
    Joined,
    Leave,
    Partitions,
    PollBegan,
    PollEnded,
    Ready,
    Released,
    StreamEnded,
    Subscribed,
    Tick,
    Timing,
    Wish,
)
from penstock.errors import ErrorCode, Lost, PenstockError


class Phase(Enum):
    """The state of the member's stream."""

    OUT = "not in the group, and will not join before the next poll"
    WAITING = "wants a stream, at `retry_at_ms`"
    JOINING = "said hello"
    MEMBER = "joined"
    LEAVING = "says leave"
    FAILED = "the coordinator's refusal is final"


class Membership:
    """One per consumer with a subscription. Times are milliseconds of any one monotonic clock."""

    def __init__(
        self, timing: Timing, *, is_static: bool = False, polls_repeat: bool = False
    ) -> None:
        """`polls_repeat`: a poll that waits says `PollBegan` again within `max_poll_interval_ms`,
        and is stuck if it does not. Otherwise, one that has begun counts as alive."""
        self._timing = timing
        self._polls_repeat = polls_repeat
        self._is_static = is_static
        self._session_timeout_ms = timing.session_timeout_ms
        self._heartbeat_interval_ms = 15_000
        self.phase = Phase.OUT
        self.member_epoch = 0
        self.owned: Partitions = NONE
        self.revoking: Partitions = NONE
        self._target: Partitions = NONE
        self._number = 0
        self._told: tuple[Partitions, int] = (NONE, 0)
        self._wish: Wish | None = None
        self._new_member_id = True
        self._polling = False
        self._active_ms = 0
        self._yielded = 0
        self._heard_ms = 0
        self._sent_ms = 0
        self._retry_at_ms = 0
        self._failures = 0
        self._noticed: ErrorCode | None = None
        self._unreleased_since_ms: int | None = None
        self._farewell: Farewell | None = None
        self._hello_said = False

    @property
    def readable(self) -> Partitions:
        """The partitions that may be read now."""
        return self.owned - self.revoking

    def handle(self, event: Event, now_ms: int) -> Ready:
        """The effects of one event; see `Ready`."""
        ready = Ready()
        match event:
            case HelloSaid() | Joined() | Assigned() | Heard() | StreamEnded() | Fenced():
                self._from_coordinator(event, now_ms, ready)
            case _:
                self._from_user(event, now_ms, ready)
        self._look_at_clock(now_ms, ready)
        self._speak(now_ms, ready)
        ready.wake_at_ms = self._next_deadline_ms()
        return ready

    # ------------------------------------------------------------ the user

    def _from_user(
        self,
        event: Subscribed | PollBegan | PollEnded | Tick | Released,
        now_ms: int,
        ready: Ready,
    ) -> None:
        match event:
            case Subscribed(wish):
                self._subscribe(wish, now_ms, ready)
            case PollBegan():
                self._polling = True
                self._active_ms = now_ms
                if self._is_out and self._wish is not None:
                    self._want_stream(now_ms)
            case PollEnded():
                self._polling = False
                self._active_ms = now_ms
            case Tick(yielded):
                if yielded != self._yielded:
                    self._yielded = yielded
                    self._active_ms = now_ms
            case Released(partitions):
                self._released(partitions, ready)

    def _subscribe(self, wish: Wish | None, now_ms: int, ready: Ready) -> None:
        before, self._wish = self._wish, wish
        if wish is None:
            self._leave(now_ms, ready, before, keep_seat=self._is_static)
        elif self.phase is Phase.FAILED:
            self._want_stream(now_ms)
        elif self.phase is Phase.MEMBER and wish != before:
            ready.send.append(Heartbeat(wish=wish))
        elif self.phase is Phase.JOINING:
            ready.close = True  # its hello named the former subscription
            self._want_stream(now_ms)

    @property
    def _is_out(self) -> bool:
        """Has no stream, and needs one only to leave."""
        waits = self._farewell is not None and self._farewell.retry_at_ms is not None
        return self.phase is Phase.OUT or (self.phase is Phase.LEAVING and waits)

    def _leave(self, now_ms: int, ready: Ready, wish: Wish | None, *, keep_seat: bool) -> None:
        """Leaves without waiting for an answer: what was owned is not read from here on."""
        if self.phase is Phase.LEAVING:
            return
        joined = self.phase is Phase.MEMBER
        joining = self.phase is Phase.JOINING and self._hello_said and not keep_seat
        if joined:
            ready.send.append(Leave(keep_seat))
        elif not joining:
            ready.close = True
        has_seat = (joining or self.member_epoch > 0) and wish is not None and not keep_seat
        if has_seat:
            assert wish is not None
            self._farewell = Farewell(
                Hello(self.member_epoch, NONE, wish, new_member_id=False),
                now_ms + self._session_timeout_ms,
                said=joined,
                retry_at_ms=None if joined or joining else now_ms,
            )
        self.phase = Phase.LEAVING if joined or has_seat else Phase.OUT
        self._failures = 0
        self.member_epoch = 0
        self._lose(ready)

    def _leave_again(self, event: StreamEnded, now_ms: int) -> None:
        """The stream of a leave has ended: confirmed, or the leave must be sent to the next
        coordinator."""
        farewell, error = self._farewell, event.error
        heard = error is None and farewell is not None and farewell.said
        final = error is not None and (error.lost is Lost.MEMBERSHIP or not error.retriable)
        if farewell is None or heard or final:
            self._gone()
        else:
            farewell.said = False
            farewell.retry_at_ms = now_ms + max(event.throttle_ms, self._backoff_ms())
        if self._polling and self._wish is not None:
            self._want_stream(now_ms)

    def _gone(self) -> None:
        self.phase = Phase.OUT
        self._farewell = None

    def _released(self, partitions: Partitions, ready: Ready) -> None:
        done = partitions & self.revoking
        self.revoking -= done
        self.owned -= done
        self._reconcile(ready)

    # ------------------------------------------------------------ the coordinator

    def _from_coordinator(
        self,
        event: HelloSaid | Joined | Assigned | Heard | StreamEnded | Fenced,
        now_ms: int,
        ready: Ready,
    ) -> None:
        match event:
            case HelloSaid():
                self._hello_said = True
            case Joined():
                self._joined(event, now_ms, ready)
            case Assigned():
                self._assigned(event, now_ms, ready)
            case Heard():
                self._heard_ms = now_ms
            case StreamEnded():
                self._stream_ended(event, now_ms, ready)
            case Fenced(code):
                self._fenced(code, now_ms, ready)

    def _joined(self, event: Joined, now_ms: int, ready: Ready) -> None:
        if self.phase is Phase.LEAVING and self._farewell is not None:
            self._farewell.said = True
            ready.send.append(Leave(keep_seat=False))
        if self.phase is not Phase.JOINING:
            return
        self.phase = Phase.MEMBER
        self.member_epoch = event.member_epoch
        self._heartbeat_interval_ms = event.heartbeat_interval_ms
        self._session_timeout_ms = event.session_timeout_ms
        self._new_member_id = False
        self._heard_ms = now_ms
        self._failures = 0
        self._noticed = None
        self._unreleased_since_ms = None

    def _assigned(self, event: Assigned, now_ms: int, ready: Ready) -> None:
        self._heard_ms = now_ms
        if self.phase is not Phase.MEMBER:
            return
        self.member_epoch = event.member_epoch
        self._target = event.partitions
        self._number = event.number
        self._reconcile(ready)

    def _reconcile(self, ready: Ready) -> None:
        """Moves `owned` towards the target: adds partitions at once, gives partitions up through
        the user."""
        if self.phase is not Phase.MEMBER or self._number == 0:
            return
        ready.take |= self._target - self.owned
        ready.revoke |= self.owned - self._target - self.revoking
        self.owned |= self._target
        self.revoking |= ready.revoke

    def _stream_ended(self, event: StreamEnded, now_ms: int, ready: Ready) -> None:
        if self.phase is Phase.LEAVING:
            self._leave_again(event, now_ms)
            return
        if self.phase not in (Phase.JOINING, Phase.MEMBER):
            return
        error = event.error
        if event.on_purpose:
            self._want_stream(now_ms)
        elif error is not None and error.lost is Lost.MEMBERSHIP:
            self._fenced(error.code, now_ms, ready)
        elif error is None or error.retriable:
            self._retry(error, max(event.throttle_ms, self._backoff_ms()), now_ms, ready)
        else:
            self._fail(error, ready)

    def _retry(self, error: PenstockError | None, pause_ms: int, now_ms: int, ready: Ready) -> None:
        code = error.code if error is not None else ErrorCode.UNREACHABLE
        if error is not None and code is ErrorCode.UNRELEASED_INSTANCE_ID:
            if self._unreleased_since_ms is None:
                self._unreleased_since_ms = now_ms
            if now_ms - self._unreleased_since_ms > self._session_timeout_ms:
                self._unreleased_since_ms = None
                self._fail(error, ready)
                return
        if code is not self._noticed:
            self._noticed = code
            ready.notice = f"looking up the group's coordinator again: {error or 'it disconnected'}"
        self._want_stream(now_ms, pause_ms)

    def _fail(self, error: PenstockError, ready: Ready) -> None:
        self.phase = Phase.FAILED
        self.member_epoch = 0
        ready.failed = error
        self._lose(ready)

    def _fenced(self, code: ErrorCode, now_ms: int, ready: Ready) -> None:
        if self.phase not in (Phase.JOINING, Phase.MEMBER, Phase.WAITING):
            return
        ready.close = True
        ready.notice = (
            f"removed from the group ({code.name}): {len(self.owned)} partitions are lost"
        )
        if code is ErrorCode.FENCED_INSTANCE_ID:
            self._new_member_id = True
        self.member_epoch = 0
        self._lose(ready)
        self._want_stream(now_ms, self._backoff_ms())

    def _lose(self, ready: Ready) -> None:
        ready.lost |= self.owned
        ready.take = ready.revoke = NONE
        self.owned = self.revoking = self._target = NONE
        self._number = 0

    def _want_stream(self, now_ms: int, pause_ms: int = 0) -> None:
        self.phase = Phase.WAITING
        self._farewell = None
        self._number = 0
        self._retry_at_ms = now_ms + pause_ms

    def _backoff_ms(self) -> int:
        pause_ms = self._timing.retry_first_ms << min(self._failures, 16)
        self._failures += 1
        return min(pause_ms, self._timing.retry_max_ms)

    # ------------------------------------------------------------ time

    def _look_at_clock(self, now_ms: int, ready: Ready) -> None:
        if self._farewell is not None and now_ms >= self._farewell.until_ms:
            ready.close = True
            self._gone()
        if self.phase in (Phase.OUT, Phase.FAILED, Phase.LEAVING):
            return
        silent_ms = now_ms - self._heard_ms
        if self.member_epoch and silent_ms >= self._session_timeout_ms:
            ready.notice = (
                f"no answer from the group's coordinator for {silent_ms} ms (session timeout "
                f"{self._session_timeout_ms} ms): {len(self.owned)} partitions are lost"
            )
            ready.close = True
            self.member_epoch = 0
            self._lose(ready)
            self._want_stream(now_ms)
        idle_ms = now_ms - self._active_ms
        must_speak = self._polls_repeat or not self._polling
        if must_speak and idle_ms >= self._timing.max_poll_interval_ms:
            ready.notice = (
                f"not polled for {idle_ms} ms (max_poll_interval_ms "
                f"{self._timing.max_poll_interval_ms}): left the group, its {len(self.owned)} "
                "partitions go to other members; the next poll joins again. Do less per poll, "
                "or raise max_poll_interval_ms"
            )
            self._polling = False
            self._leave(now_ms, ready, self._wish, keep_seat=False)

    def _speak(self, now_ms: int, ready: Ready) -> None:
        """Opens a stream that is due, or sends what the coordinator does not know yet."""
        if self.phase is Phase.WAITING and now_ms >= self._retry_at_ms:
            assert self._wish is not None, "nobody waits for a stream without a subscription"
            self.phase = Phase.JOINING
            self._hello_said = False
            self._told = (self.owned, 0)
            ready.open = Hello(self.member_epoch, self.owned, self._wish, self._new_member_id)
        farewell = self._farewell
        due_ms = None if farewell is None else farewell.retry_at_ms
        if farewell is not None and due_ms is not None and now_ms >= due_ms:
            farewell.retry_at_ms = None
            ready.open = farewell.hello
        if self.phase is not Phase.MEMBER:
            return
        news = (self.owned, self._number)
        if news != self._told:
            self._told = news
            ready.send.append(Heartbeat(self.owned, self._number))
        elif now_ms - self._sent_ms >= self._heartbeat_interval_ms and not ready.send:
            ready.send.append(Heartbeat())
        if ready.send:
            self._sent_ms = now_ms

    def _next_deadline_ms(self) -> int | None:
        if self._farewell is not None:
            return self._farewell.retry_at_ms or self._farewell.until_ms
        if self.phase in (Phase.OUT, Phase.FAILED, Phase.LEAVING):
            return None
        deadlines = []
        if self.phase is Phase.WAITING:
            deadlines.append(self._retry_at_ms)
        if self.phase is Phase.MEMBER:
            deadlines.append(self._sent_ms + self._heartbeat_interval_ms)
        if self.member_epoch:
            deadlines.append(self._heard_ms + self._session_timeout_ms)
        if self._polls_repeat or not self._polling:
            deadlines.append(self._active_ms + self._timing.max_poll_interval_ms)
        return min(deadlines, default=None)

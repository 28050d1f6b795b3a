"""The answers of a controller that was deposed, or stopped by a defect."""

from penstock.core.control import contract as c
from penstock.errors import ClusterError, ErrorCode, PenstockError


def not_controller() -> ClusterError:
    """Another controller has taken over."""
    return ClusterError(
        "this controller is not active, or no longer; ask another one",
        ErrorCode.NOT_CONTROLLER,
    )


def refusal(event: c.Event, error: PenstockError) -> c.Ready:
    """The answer to the sender of `event`; an empty `Ready` if it expects none."""
    match event:
        case c.BrokerRegistered() | c.HeartbeatReceived():
            return c.Ready(session_messages=(c.SessionRefused(event.stream_id, error),))
        case c.Loaded() | c.WriteDone() | c.WriteConflict() | c.WriteUnknown() | c.WriteNotSent():
            return c.Ready()
        case c.StreamClosed() | c.Tick() | c.StoreState() | c.StoreSeen():
            return c.Ready()
        case _:
            return c.Ready(replies=(c.Reply(event.request_id, error),))

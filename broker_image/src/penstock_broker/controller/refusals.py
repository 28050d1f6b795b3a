"""The errors of a controller that is not active, and takes no sessions and no changes."""

from penstock.errors import ClusterError, ErrorCode


def not_active() -> ClusterError:
    """The controller stands by, or has not taken over yet."""
    return ClusterError(
        "this controller is standing by; the active one answers elsewhere",
        ErrorCode.NOT_CONTROLLER,
    )


def suspended() -> ClusterError:
    """The controller cannot know whether it is still the active one."""
    return ClusterError(
        "this controller cannot reach its metadata store; whether a change in progress was made "
        "is unknown, others were not begun: try again",
        ErrorCode.CONTROLLER_UNAVAILABLE,
    )

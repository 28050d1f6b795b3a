"""Why a controller that does not decide takes no sessions and no changes."""

from penstock.errors import ClusterError, ErrorCode


def not_active() -> ClusterError:
    """It stands by, or has not taken over yet."""
    return ClusterError(
        "this controller is standing by; the active one answers elsewhere",
        ErrorCode.NOT_CONTROLLER,
    )


def suspended() -> ClusterError:
    """It cannot know whether it is still the active one."""
    return ClusterError(
        "this controller does not reach its metadata store; whether a change that was under way is "
        "made is unknown, others were not begun: try again",
        ErrorCode.CONTROLLER_UNAVAILABLE,
    )

"""A transactional id per pod of a StatefulSet, derived from the pod's host name."""

import re
import socket
from typing import Final

from penstock.errors import MisuseError

_ORDINAL: Final = re.compile(r".+-(0|[1-9]\d{0,3})")
_RANDOM: Final = re.compile(r".+-[0-9a-z]{6,10}-[0-9a-z]{5}")
"""As a Deployment names its pods."""


def pod_id(name: str, *, host: str = "") -> str:
    """`name` with the ordinal of this pod: `pod_id("billing")` is "billing-2" in pod "app-2".

    The pod that replaces a dead one has the same name, and so fences what may be left of it.

    Args:
        name: Of the application, the same in all its pods.
        host: The pod's name; "" = this machine's host name, which is the pod's name unless the pod
            sets another one.

    Raises MisuseError for a host name without an ordinal: ids made up at each start would fence
    nobody.
    """
    host = host or socket.gethostname().partition(".")[0]
    found = _ORDINAL.fullmatch(host)
    if not name or found is None or _RANDOM.fullmatch(host):
        raise MisuseError(
            f"pod_id({name!r}): the host name {host!r} does not end in a StatefulSet's ordinal, "
            "as app-0 does; run as a StatefulSet, or choose your own transactional ids, one per "
            "instance and the same after a restart"
        )
    return f"{name}-{found[1]}"

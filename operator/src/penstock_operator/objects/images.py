"""What can be told from the name of an image: where it comes from, and of which release it is.

    registry.example.com:5000/team/penstock-broker:0.2.1@sha256:…
    └───────────── repository ───────────────────┘ └tag┘

Pure. The operator cannot look into an image.
"""

import re
from collections.abc import Sequence
from typing import Final

HEALTH_PORT_SINCE: Final = (0, 1)
"""The first release whose processes answer probes on a port of their own."""
_VERSION: Final = re.compile(r"v?(\d+)\.(\d+)(?:\.\d+)?(?:[-+._a-z].*)?")


def repository(image: str) -> str:
    """The name without tag and digest."""
    name = image.partition("@")[0]
    folder, slash, last = name.rpartition("/")
    return f"{folder}{slash}{last.partition(':')[0]}"


def is_allowed(image: str, allowed: Sequence[str]) -> bool:
    """`allowed`: repositories; one that ends with `/*` stands for all below it, `*` for all."""
    found = repository(image)
    for each in allowed:
        if each in {"*", found}:
            return True
        if each.endswith("/*") and found.startswith(each[:-1]):
            return True
    return False


def has_health_port(image: str, own: str) -> bool:
    """Whether the image's processes are known to answer probes on a port of their own.

    `own`: the image that belongs to this operator. The tag decides if it is a version; otherwise
    only the operator's own image is known.
    """
    last = image.partition("@")[0].rpartition("/")[2]
    match = _VERSION.fullmatch(last.partition(":")[2])
    if match:
        return (int(match[1]), int(match[2])) >= HEALTH_PORT_SINCE
    return image == own

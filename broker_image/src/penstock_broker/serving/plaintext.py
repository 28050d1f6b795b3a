"""Where a server may listen without encryption and without asking who calls.

There is neither TLS nor authentication yet: whoever reaches a port may read and change everything.
On a loopback address these are the users of the machine; anything else must be asked for.
"""

import argparse
import ipaddress
import os
from collections.abc import Mapping
from typing import Final

from penstock.errors import ErrorCode, MisuseError

INSECURE_VARIABLE: Final = "PENSTOCK_INSECURE"
HEALTH_VARIABLE: Final = "PENSTOCK_HEALTH_LISTEN"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`--insecure` and `--health-listen`, which brokers and controllers have in common.

    The operator sets the variables: an image of an older release ignores them, and would refuse the
    options.
    """
    parser.add_argument(
        "--insecure",
        action="store_true",
        default=os.environ.get(INSECURE_VARIABLE, "").lower() in {"1", "true"},
        help="allow plaintext without authentication on addresses other than loopback; default: "
        f"${INSECURE_VARIABLE}",
    )
    parser.add_argument(
        "--health-listen",
        default=os.environ.get(HEALTH_VARIABLE, ""),
        metavar="HOST:PORT",
        help="gRPC health for probes, answered however busy the other ports are; default: "
        f"${HEALTH_VARIABLE}, or only on --listen",
    )


def check_plaintext(listeners: Mapping[str, str], *, insecure: bool) -> None:
    """Raises MisuseError if a listener (`host:port` by its option) would let strangers in."""
    for option, address in listeners.items():
        if address and not insecure and not _is_loopback(address):
            raise MisuseError(
                f"{option} {address} is not a loopback address, and Penstock has neither TLS nor "
                "authentication yet: whoever reaches it may read and change everything; listen on "
                "127.0.0.1, or, on a network where everybody is trusted, give --insecure "
                f"({INSECURE_VARIABLE}=true)",
                ErrorCode.INVALID_CONFIG,
            )


def _is_loopback(address: str) -> bool:
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"

"""How a server is secured, and where it may listen if it is not.

Without TLS, whoever reaches a port may read and change everything. On a loopback address these are
the users of the machine; anything else must be asked for.
"""

import argparse
import ipaddress
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from penstock.errors import ErrorCode, MisuseError
from penstock.rpc.tls import Tls, TlsFiles

INSECURE_VARIABLE: Final = "PENSTOCK_INSECURE"
HEALTH_VARIABLE: Final = "PENSTOCK_HEALTH_LISTEN"
SECURE_VARIABLE: Final = "PENSTOCK_SECURE_LISTEN"
_TLS: Final = {
    "--tls-ca": ("PENSTOCK_TLS_CA", "the CAs that are trusted"),
    "--tls-certificate": ("PENSTOCK_TLS_CERTIFICATE", "this server's certificate"),
    "--tls-key": ("PENSTOCK_TLS_KEY", "the certificate's key"),
}
"""Options in the order of `TlsFiles`: their variables, and what is in the files."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`--tls-…`, `--insecure`, `--health-listen`, `--secure-listen` and `--migrate`, which brokers
    and controllers have in common.

    The operator sets the variables: an image of an older release ignores them, and would refuse the
    options. `--migrate` has none, because such an image has to refuse it.
    """
    _add_tls_arguments(parser)
    parser.add_argument(
        "--secure-listen",
        default=os.environ.get(SECURE_VARIABLE, ""),
        metavar="HOST:PORT",
        help="a second address that has TLS, also with --migrate: of a broker for clients, of a "
        f"controller for brokers; default: ${SECURE_VARIABLE}",
    )
    parser.add_argument(
        "--migrate",
        action="store_true",
        help="between plaintext and TLS: all addresses of a plaintext cluster stay as they are, "
        "and --secure-listen and --internal-listen have TLS beside them",
    )
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


def _add_tls_arguments(parser: argparse.ArgumentParser) -> None:
    for option, (variable, what) in _TLS.items():
        parser.add_argument(
            option,
            type=Path,
            default=os.environ.get(variable) or None,
            metavar="FILE",
            help=f"{what} (PEM), read again when it changes; all three, or none: plaintext; "
            f"default: ${variable}",
        )


def tls_of(args: argparse.Namespace) -> Tls | None:
    """What the options say; None: plaintext. Raises MisuseError."""
    files = (args.tls_ca, args.tls_certificate, args.tls_key)
    if not any(files):
        return None
    if not all(files):
        missing = ", ".join(o for o, given in zip(_TLS, files, strict=True) if not given)
        raise MisuseError(
            f"TLS needs {', '.join(_TLS)}; {missing} is missing", ErrorCode.INVALID_CONFIG
        )
    return Tls(TlsFiles(*files))


def check_migration(args: argparse.Namespace, tls: Tls | None) -> None:
    """Raises MisuseError if the options for TLS beside plaintext do not go together."""
    if args.secure_listen and tls is None:
        raise MisuseError(
            f"--secure-listen {args.secure_listen} needs {', '.join(_TLS)}",
            ErrorCode.INVALID_CONFIG,
        )
    if args.migrate and (tls is None or not args.secure_listen):
        raise MisuseError(
            f"--migrate is TLS beside plaintext: give {', '.join(_TLS)} and --secure-listen, too",
            ErrorCode.INVALID_CONFIG,
        )


def check_plaintext(listeners: Mapping[str, str], *, insecure: bool) -> None:
    """Raises MisuseError if a listener (`host:port` by its option) would let strangers in."""
    for option, address in listeners.items():
        if address and not insecure and not _is_loopback(address):
            raise MisuseError(
                f"{option} {address} is not a loopback address, and without TLS whoever reaches it "
                "may read and change everything; give --tls-ca, --tls-certificate and --tls-key, "
                "or listen on 127.0.0.1, or, on a network where everybody is trusted, give "
                f"--insecure ({INSECURE_VARIABLE}=true)",
                ErrorCode.INVALID_CONFIG,
            )


def _is_loopback(address: str) -> bool:
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"

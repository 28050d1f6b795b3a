"""The options of a broker's port for users who show a certificate.

The operator sets the variables: an image of an older release ignores them, and then nobody gets in
by certificate.
"""

import argparse
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.errors import ErrorCode, MisuseError
from penstock.rpc.tls import Tls
from penstock_broker.config import parse_address
from penstock_broker.serving.user_certificates import UsersCa

LISTEN_VARIABLE: Final = "PENSTOCK_CERTIFICATE_LISTEN"
CA_VARIABLE: Final = "PENSTOCK_USERS_CA"
EXTERNAL_VARIABLE: Final = "PENSTOCK_EXTERNAL_CERTIFICATE_PORT"


@dataclass(frozen=True, slots=True)
class CertifiedUsers:
    """What the options say. `listen` "": there is no such port. `external_port` 0: it is not
    advertised outside."""

    listen: str = ""
    ca: Path | None = None
    external_port: int = 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`--certificate-listen`, `--users-ca`, `--external-certificate-port`."""
    add = parser.add_argument
    add(
        "--certificate-listen",
        default=os.environ.get(LISTEN_VARIABLE, ""),
        metavar="HOST:PORT",
        help="with TLS: for users who show a certificate of a CA in --users-ca, and no token; "
        f"default: ${LISTEN_VARIABLE}",
    )
    add(
        "--users-ca",
        type=Path,
        default=os.environ.get(CA_VARIABLE) or None,
        metavar="FILE",
        help="CAs (PEM) that sign for users, none that servers of the cluster trust; may be "
        f"missing for now, read again when it changes; default: ${CA_VARIABLE}",
    )
    add(
        "--external-certificate-port",
        default=os.environ.get(EXTERNAL_VARIABLE) or "0",
        metavar="PORT",
        help="where broker 0's --certificate-listen is at the host of --external-advertise, for "
        f"all who use it; broker n has port + n; default: ${EXTERNAL_VARIABLE}, or not outside",
    )


def certified_users(args: argparse.Namespace, *, secured: bool) -> CertifiedUsers:
    """What the options say. `secured`: there is TLS. Raises MisuseError."""
    listen, ca = str(args.certificate_listen), args.users_ca
    if bool(listen) != (ca is not None):
        raise _wrong("--certificate-listen and --users-ca go together; give both or none")
    external = _external_port(args)
    if not listen:
        if external:
            raise _wrong("--external-certificate-port needs --certificate-listen")
        return CertifiedUsers()
    if not secured:
        raise _wrong(
            "--certificate-listen needs TLS (--tls-ca, --tls-certificate, --tls-key): without it "
            "nobody shows a certificate"
        )
    parse_address(listen, "--certificate-listen")
    return CertifiedUsers(listen, ca, external)


def users_ca(path: Path | None, tls: Tls | None) -> UsersCa | None:
    """None: there is no port for certificates."""
    return None if path is None or tls is None else UsersCa(path, tls)


def _external_port(args: argparse.Namespace) -> int:
    """This broker's, 0: none."""
    text = args.external_certificate_port
    first = int(text) if text.isascii() and text.isdigit() else -1
    if first == 0:
        return 0
    if not args.external_advertise:
        raise _wrong("--external-certificate-port needs --external-advertise, which has the host")
    if not 0 < first <= 65_535 - args.broker_id:
        raise _wrong(
            f"--external-certificate-port is {text[:20]!r}; it must be 1 to "
            f"{65_535 - args.broker_id}, so that broker {args.broker_id} has a port"
        )
    return int(first + args.broker_id)


def _wrong(what: str) -> MisuseError:
    return MisuseError(what, ErrorCode.INVALID_CONFIG)

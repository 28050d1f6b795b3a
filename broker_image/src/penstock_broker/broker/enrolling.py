"""Options by which a broker gets its certificate from a controller, and what they lead to.

--enrol-at, --enrol-token, --enrol-ca ─▶ enrolled: waits for a certificate, sets `--tls-…`
                                     └─▶ kept: renews it while the broker serves
"""

import argparse
import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from penstock.core.types import BrokerId
from penstock.errors import ErrorCode, MisuseError
from penstock_broker.certificates.enrolment_client import Enrolment, EnrolmentConfig
from penstock_broker.config import parse_address


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """An image of an older release refuses them, and so never serves in plaintext instead."""
    add = parser.add_argument
    add(
        "--enrol-at",
        default="",
        metavar="HOST:PORT[,…]",
        help="controllers that sign certificates, instead of --tls-certificate and --tls-key; "
        "certificate, key and issuers of tokens are kept in DATA_DIR/tls",
    )
    add("--enrol-token", type=Path, metavar="FILE", help="a token of this broker's pod")
    add("--enrol-ca", type=Path, metavar="FILE", help="the CAs that are trusted (PEM)")


def enrolled(args: argparse.Namespace) -> Enrolment | None:
    """None without `--enrol-at`. Waits until there is a certificate, and points `--tls-…` in `args`
    at it. Raises MisuseError."""
    if not args.enrol_at:
        return None
    if args.enrol_token is None or args.enrol_ca is None:
        raise MisuseError(
            "--enrol-at, --enrol-token and --enrol-ca go together; give all three or none",
            ErrorCode.INVALID_CONFIG,
        )
    if args.tls_certificate or args.tls_key:
        raise MisuseError(
            "--enrol-at gets a certificate; remove --tls-certificate and --tls-key, or --enrol-at",
            ErrorCode.INVALID_CONFIG,
        )
    controllers = tuple(address.strip() for address in args.enrol_at.split(","))
    for address in controllers:
        parse_address(address, "--enrol-at")
    enrolment = Enrolment(
        EnrolmentConfig(
            broker_id=BrokerId(args.broker_id),
            folder=args.data_dir / "tls",
            controllers=controllers,
            token=args.enrol_token,
            trust=args.enrol_ca,
            hosts=tuple(_hosts(args)),
        )
    )
    asyncio.run(enrolment.ensure())
    files = enrolment.files
    args.tls_ca = args.tls_ca or files.ca
    args.tls_certificate, args.tls_key = files.certificate, files.key
    if getattr(args, "token_issuers", None) is None:
        args.token_issuers = enrolment.issuers
    return enrolment


@asynccontextmanager
async def kept(enrolment: Enrolment | None, heard: Callable[[float], None]) -> AsyncIterator[None]:
    """Looks after the certificate while the block runs. `heard`: see `Enrolment.keep`."""
    if enrolment is None:
        yield
        return
    async with asyncio.TaskGroup() as tasks:
        keeping = tasks.create_task(enrolment.keep(heard), name="enrolment")
        yield
        keeping.cancel()


def _hosts(args: argparse.Namespace) -> list[str]:
    """Under which others reach this broker: its certificate must name them."""
    advertised = args.advertise or args.listen, args.external_advertise
    options = "--advertise", "--external-advertise"
    return [
        parse_address(address, option)[0]
        for address, option in zip(advertised, options, strict=True)
        if address
    ]

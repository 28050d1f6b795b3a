"""`python -m penstock_broker broker`: from the command line to a serving process.

Exit codes: 0 after a clean stop; 1 when the broker could not continue (see its log); 2 for an
invalid option, an address in use, or another broker's data directory: one line on stderr.
"""

import argparse
import asyncio
import os
import signal
import socket
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from penstock.core.types import BrokerId
from penstock.errors import ErrorCode, MisuseError, PenstockError
from penstock.rpc.tls import Tls
from penstock.rpc.transport import GrpcTransport
from penstock_broker.broker import certified_users, enrolling
from penstock_broker.broker.process import BrokerProcess
from penstock_broker.certificates.enrolment_client import Enrolment
from penstock_broker.certificates.own import check_own_certificate
from penstock_broker.config import BrokerConfig, parse_address, parse_settings
from penstock_broker.datadir import DataDirectory
from penstock_broker.descriptors import connections_max, raise_limit
from penstock_broker.observability import EventLog, configure_logging, serve_metrics
from penstock_broker.serving import plaintext, roles
from penstock_broker.serving.allocator import limit_arenas
from penstock_broker.serving.edge import first_error
from penstock_broker.serving.interpreter import check_interpreter
from penstock_broker.serving.tokens import file as issuers
from penstock_broker.serving.tokens.login import no_look_again
from penstock_broker.serving.user_certificates import UsersCa, watched
from penstock_broker.store.options import StoreOptions
from penstock_broker.store.rocks import RocksLogStore

CLEAN: Final = 0
FAILED: Final = 1
REFUSED: Final = 2
_RACK_WAIT_S: Final = 20.0
_RACK_POLL_S: Final = 0.1
_events = EventLog("main")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of a broker."""
    add = parser.add_argument
    add("--broker-id", type=int, required=True, help="0 or more; must never change")
    add("--data-dir", type=Path, required=True, help="where the logs are stored")
    add(
        "--listen",
        required=True,
        metavar="HOST:PORT",
        help="port 0: a free port, see the log",
    )
    add("--advertise", metavar="HOST:PORT", help="what clients connect to (default: --listen)")
    add(
        "--controllers",
        required=True,
        metavar="HOST:PORT[,…]",
        help="all controllers, or names for them",
    )
    add("--rack", default="", help="failure domain, for placement")
    add("--rack-file", type=Path, metavar="PATH", help="holds the rack; may be filled later")
    add(
        "--external-listen",
        default="",
        metavar="HOST:PORT",
        help="a second address, for clients outside the network",
    )
    add(
        "--external-advertise",
        default="",
        metavar="HOST:PORT",
        help="address of broker 0 for these clients; broker n has port + n",
    )
    add(
        "--replication-listen",
        # An image of an older release ignores the variable, and would refuse an option: the
        # operator sets this one.
        default=os.environ.get("PENSTOCK_REPLICATION_LISTEN", ""),
        metavar="HOST:PORT",
        help="for other brokers to copy from here; port 0: a free port; default: "
        "$PENSTOCK_REPLICATION_LISTEN, or over --listen, which costs more",
    )
    add(
        "--stream-listen",
        default=os.environ.get("PENSTOCK_STREAM_LISTEN", ""),
        metavar="HOST:PORT",
        help="for clients to produce and fetch over message streams; port 0: a free port; default: "
        "$PENSTOCK_STREAM_LISTEN, or over --listen alone, which costs more",
    )
    add(
        "--internal-listen",
        default=os.environ.get("PENSTOCK_INTERNAL_LISTEN", ""),
        metavar="HOST:PORT",
        help="with TLS: for other brokers and controllers, which show a certificate; --listen is "
        "then for clients alone; default: $PENSTOCK_INTERNAL_LISTEN",
    )
    for part in (plaintext, roles, enrolling, issuers, certified_users):
        part.add_arguments(parser)
    add("--metrics-listen", default="", metavar="HOST:PORT", help="Prometheus endpoint")
    add("--log-level", default="INFO", choices=("DEBUG", "INFO", "WARNING", "ERROR"))
    add("--config", action="append", default=[], metavar="KEY=VALUE", help="settings; repeatable")


def run(args: argparse.Namespace) -> int:
    """Runs a broker until SIGTERM or SIGINT; returns the exit code."""
    try:
        return _run(args)
    except PenstockError as error:
        print(f"penstock broker: {error}", file=sys.stderr)
        return REFUSED


def _run(args: argparse.Namespace) -> int:
    check_interpreter()
    limit_arenas()
    configure_logging(args.log_level, process="broker", broker=args.broker_id)
    enrolment = enrolling.enrolled(args)
    tls = plaintext.tls_of(args)
    plaintext.check_migration(args, tls)
    config = _config(args, secured=tls is not None)
    users_ca = certified_users.users_ca(config.users_ca, tls)
    roots = None if users_ca is None else lambda: users_ca.roots
    transport = GrpcTransport(
        tls,
        users_authorities=roots,
        migrating=args.migrate,
        connections_max=connections_max(raise_limit()),
    )
    _check_certificate(tls, config.broker_id, "")
    for option, address in (
        ("--listen", config.listen),
        ("--internal-listen", config.internal_listen),
        ("--secure-listen", config.secure_listen),
        ("--replication-listen", config.replication_listen),
        ("--stream-listen", config.stream_listen),
        ("--certificate-listen", config.certificate_listen),
        ("--health-listen", config.health_listen),
    ):
        if address:
            _check_free(address, option)
    if args.rack_file:
        config = replace(config, rack=_read_rack(args.rack_file))
    directory = DataDirectory.open(config.data_dir, cluster_id=None, broker_id=config.broker_id)
    clean = False
    try:
        _check_certificate(tls, config.broker_id, directory.cluster_id)
        options = StoreOptions(strict_wal=directory.data_intact)
        store = RocksLogStore(directory.log_path, options)
        if store.damaged_table:
            _events.error(
                "a table of RocksDB is damaged: it is not merged, and no space is freed until the "
                "volume is replaced",
                reason=store.damaged_table,
            )
        if not store.collects_garbage:
            _events.warning(
                "damage was met in a blob file of RocksDB: garbage in these files stays for two "
                "weeks, in which damage is looked for and mended",
            )
        try:
            stopped_well = asyncio.run(
                _serve(config, directory, store, transport, users_ca, enrolment)
            )
        finally:
            store.close()
        # Only once the store is on disk: the mark promises that nothing is missing (I7).
        clean = stopped_well
    finally:
        directory.close(clean=clean)
    return CLEAN if clean else FAILED


def _config(args: argparse.Namespace, *, secured: bool) -> BrokerConfig:
    if not 0 <= args.broker_id < 2**31:
        raise MisuseError(
            f"--broker-id is {args.broker_id}; it must be 0 to {2**31 - 1}",
            ErrorCode.INVALID_CONFIG,
        )
    if args.rack and args.rack_file:
        raise MisuseError("give --rack or --rack-file, not both", ErrorCode.INVALID_CONFIG)
    parse_address(args.listen, "--listen")
    host, port = parse_address(args.advertise or args.listen, "--advertise")
    controllers = tuple(address.strip() for address in args.controllers.split(","))
    for address in controllers:
        parse_address(address, "--controllers")
    if args.metrics_listen:
        parse_address(args.metrics_listen, "--metrics-listen")
    if args.replication_listen:
        parse_address(args.replication_listen, "--replication-listen")
    if args.stream_listen:
        parse_address(args.stream_listen, "--stream-listen")
    _check_internal(args.internal_listen, secured=secured)
    if args.secure_listen:
        parse_address(args.secure_listen, "--secure-listen")
    if args.health_listen:
        parse_address(args.health_listen, "--health-listen")
    external_host, external_port = _external(args)
    listeners = {
        "--listen": args.listen,
        "--replication-listen": args.replication_listen,
        "--stream-listen": args.stream_listen,
        "--external-listen": args.external_listen,
    }
    trusted = args.insecure or (secured and not args.migrate)
    plaintext.check_plaintext(listeners, insecure=trusted)
    admins, viewers = roles.parse_roles(args)
    certified = certified_users.certified_users(args, secured=secured)
    return BrokerConfig(
        broker_id=BrokerId(args.broker_id),
        data_dir=args.data_dir,
        listen=args.listen,
        advertise_host=host,
        advertise_port=port,
        controllers=controllers,
        rack=args.rack,
        metrics_listen=args.metrics_listen,
        external_listen=args.external_listen,
        external_host=external_host,
        external_port=external_port,
        replication_listen=args.replication_listen,
        stream_listen=args.stream_listen,
        health_listen=args.health_listen,
        internal_listen=args.internal_listen,
        certificate_listen=certified.listen,
        external_certificate_port=certified.external_port,
        users_ca=certified.ca,
        secure_listen=args.secure_listen,
        token_issuers=args.token_issuers,
        admins=admins,
        viewers=viewers,
        settings=parse_settings(args.config),
    )


def _check_certificate(tls: Tls | None, broker_id: BrokerId, cluster_id: str) -> None:
    if tls is not None:
        check_own_certificate(tls.certificates[1], broker_id, cluster_id, datetime.now(UTC))


def _check_internal(address: str, *, secured: bool) -> None:
    if bool(address) != secured:
        raise MisuseError(
            "TLS (--tls-ca, --tls-certificate, --tls-key) and --internal-listen go together: "
            "clients, and brokers and controllers, then have a port each; give both or none",
            ErrorCode.INVALID_CONFIG,
        )
    if address:
        parse_address(address, "--internal-listen")


def _read_rack(path: Path) -> str:
    """The rack in the file; "" if none appears within `_RACK_WAIT_S`.

    A pod starts before its labels are complete; the kubelet then fills the file.
    """
    deadline = time.monotonic() + _RACK_WAIT_S
    while True:
        try:
            rack = path.read_text(encoding="utf-8").strip()
        except FileNotFoundError:
            rack = ""
        except (OSError, UnicodeDecodeError) as error:
            raise MisuseError(
                f"--rack-file {path} cannot be read: {error}", ErrorCode.INVALID_CONFIG
            ) from None
        if rack:
            return rack
        if time.monotonic() > deadline:
            _events.warning(
                "no rack in the file, continuing without one", path=str(path), waited_s=_RACK_WAIT_S
            )
            return ""
        time.sleep(_RACK_POLL_S)


def _external(args: argparse.Namespace) -> tuple[str, int]:
    """The address advertised to clients outside; empty without an external listener."""
    if bool(args.external_listen) != bool(args.external_advertise):
        raise MisuseError(
            "--external-listen and --external-advertise go together; give both or none",
            ErrorCode.INVALID_CONFIG,
        )
    if not args.external_listen:
        return "", 0
    parse_address(args.external_listen, "--external-listen")
    host, port = parse_address(args.external_advertise, "--external-advertise")
    if not 0 < port + args.broker_id <= 65_535:
        raise MisuseError(
            f"--external-advertise gives broker {args.broker_id} port {port + args.broker_id}; "
            "ports end at 65535, begin lower",
            ErrorCode.INVALID_CONFIG,
        )
    return host, port + args.broker_id


async def _serve(
    config: BrokerConfig,
    directory: DataDirectory,
    store: RocksLogStore,
    transport: GrpcTransport,
    users_ca: UsersCa | None,
    enrolment: Enrolment | None,
) -> bool:
    """True after a clean stop; False when a part failed. Raises PenstockError if refused."""
    look_again = no_look_again if enrolment is None else enrolment.look_again
    process = BrokerProcess(config, directory, store, transport, look_again=look_again)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, process.stop_requested.set)
    failure: PenstockError | None = None
    metrics = None
    if config.metrics_listen:
        try:
            metrics = serve_metrics(config.metrics_listen, process.metrics.registry)
        except OSError as error:
            raise _in_use(config.metrics_listen, "--metrics-listen", error) from error
    try:
        async with (
            enrolling.kept(enrolment, process.users.grace.heard),
            watched(users_ca),
        ):
            await process.run()
    except* PenstockError as group:
        first = first_error(group)
        assert isinstance(first, PenstockError)
        failure = first
    finally:
        if metrics is not None:
            metrics.shutdown()
            metrics.server_close()
    if failure is None:
        return True
    if failure.code in {ErrorCode.CLUSTER_ID_MISMATCH, ErrorCode.INVALID_CONFIG}:
        raise failure
    _events.error("broker ends: it cannot continue", reason=str(failure))
    return False


def _check_free(address: str, option: str) -> None:
    """Refuses an address in use before gRPC does so in many lines."""
    host, port = parse_address(address, option)
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        raise _in_use(address, option, error) from error


def _in_use(address: str, option: str, error: OSError) -> MisuseError:
    return MisuseError(
        f"{option} {address}: {error.strerror or error}; stop what listens there, or choose "
        "another address",
        ErrorCode.INVALID_CONFIG,
    )

"""`python -m penstock_broker controller …`: arguments, start, signals, clean stop.

Exit codes: 0 after SIGTERM or SIGINT, 2 for anything that whoever runs the process must fix, 1 for
a defect in the code; the last two with one line on stderr that says why.
"""

import argparse
import asyncio
import signal
import socket
import sys
import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from penstock.core.control import ControlConfig
from penstock.errors import ErrorCode, MisuseError, PenstockError
from penstock.rpc.transport import GrpcTransport
from penstock_broker.certificates.own import check_own_certificate
from penstock_broker.clock import SystemClock
from penstock_broker.controller import enrolment_setup
from penstock_broker.controller.metadata_store.interface import BlockingStore, MetadataStore
from penstock_broker.controller.metadata_store.local import LocalMetadataStore
from penstock_broker.controller.metadata_store.threaded import ThreadedStore
from penstock_broker.controller.process import ControllerProcess
from penstock_broker.controller.seams import ControllerSeams
from penstock_broker.descriptors import connections_max, raise_limit
from penstock_broker.observability import EventLog, configure_logging, serve_metrics
from penstock_broker.serving import plaintext, roles
from penstock_broker.serving.edge import first_error
from penstock_broker.serving.interpreter import check_interpreter
from penstock_broker.serving.tls_watch import CertificateMetrics

FAILED: Final = 1
REFUSED: Final = 2
_PORT_MAX: Final = 65_535
_events = EventLog("controller")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of a controller."""
    parser.add_argument(
        "--metadata-dir", type=Path, help="keep the cluster's documents in this directory"
    )
    parser.add_argument(
        "--metadata", choices=["kubernetes"], help="keep them in ConfigMaps; needs --cluster"
    )
    parser.add_argument("--cluster", help="name of the Cluster object, as in flights")
    parser.add_argument("--namespace", help="namespace of the Cluster object")
    parser.add_argument(
        "--owner-uid", default="", help="the Cluster's uid: deleting it deletes the documents"
    )
    parser.add_argument("--owner-name", default="", help="name of the owner (default: --cluster)")
    parser.add_argument(
        "--listen",
        required=True,
        metavar="HOST:PORT",
        help="gRPC address; port 0: any free port, logged as `controller listening`",
    )
    plaintext.add_arguments(parser)
    roles.add_arguments(parser)
    enrolment_setup.add_arguments(parser)
    parser.add_argument("--metrics-listen", metavar="HOST:PORT", help="Prometheus address")
    parser.add_argument(
        "--cluster-id", default="", help="id of a new cluster; must match that of an existing one"
    )
    parser.add_argument(
        "--config",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="num.partitions, default.replication.factor, broker.session.timeout.ms, "
        "or any topic config as the cluster's default",
    )
    parser.add_argument("--log-level", default="INFO", choices=["DEBUG", "INFO", "WARNING"])


def run(args: argparse.Namespace) -> int:
    """Runs until a signal; returns the exit code."""
    configure_logging(args.log_level, component="controller")
    try:
        check_interpreter()
        config = ControlConfig.parse(_settings(args.config))
        roles.parse_roles(args)
        for option, address in (
            ("--listen", args.listen),
            ("--metrics-listen", args.metrics_listen),
            ("--health-listen", args.health_listen),
            ("--enrol-listen", args.enrol_listen),
            ("--secure-listen", args.secure_listen),
        ):
            if address:
                _check_address(option, address)
        store = _open_store(args)
        enrolling = enrolment_setup.enrolling_of(args, store)
        tls = plaintext.tls_of(args)
        if tls is not None:
            check_own_certificate(tls.certificates[1], None, args.cluster_id, datetime.now(UTC))
        plaintext.check_migration(args, tls)
        trusted = args.insecure or (tls is not None and not args.migrate)
        plaintext.check_plaintext({"--listen": args.listen}, insecure=trusted)
    except PenstockError as error:
        return _refuse(error.message)
    try:
        with (
            ThreadPoolExecutor(1, "metadata") as documents,
            ThreadPoolExecutor(1, "lease") as lease,
        ):
            adapted = ThreadedStore(store, documents, lease)
            most = connections_max(raise_limit())
            transport = GrpcTransport(tls, migrating=args.migrate, connections_max=most)
            seams = _seams(adapted, transport)
            return asyncio.run(_serve(args, config, seams, enrolling))
    finally:
        store.close()
        if enrolling is not None:
            enrolling.close()


def _seams(store: MetadataStore, transport: GrpcTransport) -> ControllerSeams:
    return ControllerSeams(
        clock=SystemClock(),
        transport=transport,
        store=store,
        holder=f"{socket.gethostname()}_{uuid.uuid4()}",
        new_id=lambda: str(uuid.uuid4()),
    )


async def _serve(
    args: argparse.Namespace,
    config: ControlConfig,
    seams: ControllerSeams,
    enrolling: enrolment_setup.Enrolling | None,
) -> int:
    try:
        for address in (args.listen, args.secure_listen, args.health_listen):
            if address:
                _try_port(address)
        process = ControllerProcess(
            config,
            seams,
            args.listen,
            cluster_id=args.cluster_id,
            secure_listen=args.secure_listen,
            health_listen=args.health_listen,
            journaled=args.metadata == "kubernetes",
            rulebook=roles.rulebook(args),
        )
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        return _refuse(f"--listen {args.listen} cannot be used: {reason}; give another address")
    metrics = None
    if args.metrics_listen is not None:
        try:
            registry = process.metrics.registry
            if seams.transport.tls is not None:
                registry.register(CertificateMetrics(seams.transport.tls))
            metrics = serve_metrics(args.metrics_listen, registry)
        except OSError as error:
            reason = f"--metrics-listen {args.metrics_listen} cannot be used: {error.strerror}"
            return _refuse(f"{reason}; give another address")
    try:
        of = enrolment_setup.Controller(seams.holder, process.runtime.tls_of_brokers)
        async with enrolment_setup.running(enrolling, seams.transport.tls, args, of):
            return await _run_until_stopped(process)
    except MisuseError as error:
        return _refuse(error.message)
    finally:
        if metrics is not None:
            metrics.shutdown()
            metrics.server_close()


async def _run_until_stopped(process: ControllerProcess) -> int:
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, process.stop_requested.set)
    code = 0
    try:
        await process.run()
    except* PenstockError as group:
        code = _ended_by(group)
    except* Exception as group:  # noqa: BLE001 - one line, and the exit code
        _events.defect("the controller ends: a defect", group)
        code = _say(f"a defect ended it: {first_error(group)!r}; its log has the details", FAILED)
    _events.info("controller stopped", exit_code=code)
    return code


def _settings(pairs: list[str]) -> dict[str, str]:
    settings = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise MisuseError(
                f"--config {pair!r} must be KEY=VALUE, as in num.partitions=3",
                ErrorCode.INVALID_CONFIG,
            )
        settings[key] = value
    return settings


def _check_address(option: str, address: str) -> None:
    host, colon, port = address.rpartition(":")
    digits = port.isascii() and port.isdigit()
    if not colon or not host or not digits or int(port) > _PORT_MAX:
        raise MisuseError(f"{option} {address!r} must be HOST:PORT, as in 127.0.0.1:9090")


def _try_port(listen: str) -> None:
    """Binds the port once itself: gRPC would write a line of its own to stderr before it raises.

    Raises OSError if the port is not available.
    """
    host, _, port = listen.rpartition(":")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((host.strip("[]"), int(port)))


def _open_store(args: argparse.Namespace) -> BlockingStore:
    """Raises PenstockError. Sends no request: an unavailable API server is waited for later."""
    kubernetes_only: tuple[str, ...] = ("owner_uid", "owner_name")
    if args.ca_certificate is None:  # certificates name both, wherever the documents are
        kubernetes_only = ("cluster", "namespace", *kubernetes_only)
    given = [f"--{name.replace('_', '-')}" for name in kubernetes_only if getattr(args, name)]
    if (args.metadata_dir is None) == (args.metadata is None):
        raise MisuseError(
            "give exactly one of --metadata-dir DIR (one machine) and --metadata=kubernetes "
            "(with --cluster and --namespace)"
        )
    if args.metadata_dir is not None:
        if given:
            raise MisuseError(f"{given[0]} is for --metadata=kubernetes, not --metadata-dir")
        return LocalMetadataStore(args.metadata_dir)
    if not args.cluster or not args.namespace:
        raise MisuseError("--metadata=kubernetes needs --cluster NAME and --namespace NAMESPACE")
    if args.owner_name and not args.owner_uid:
        raise MisuseError("--owner-name needs --owner-uid: an owner is identified by its uid")
    # Only here: the client takes 25 MB and a second, which local mode does not need.
    from penstock.kubernetes.connect import connect  # noqa: PLC0415
    from penstock_broker.controller.metadata_store import (  # noqa: PLC0415
        kubernetes,
        kubernetes_objects,
    )

    objects = kubernetes_objects.ClusterObjects(
        args.cluster, args.namespace, args.owner_uid, args.owner_name
    )
    api = connect("penstock-controller", kubernetes.TIMEOUTS)
    return kubernetes.KubernetesMetadataStore(api, objects)


def _ended_by(group: BaseExceptionGroup[PenstockError]) -> int:
    """Prints why; returns the exit code. A defect was logged where it was found."""
    error = first_error(group)
    defect = isinstance(error, PenstockError) and error.code is ErrorCode.INTERNAL
    return _say(str(error), FAILED if defect else REFUSED)


def _refuse(message: str) -> int:
    return _say(message, REFUSED)


def _say(message: str, code: int) -> int:
    """Prints one line; returns the exit code."""
    sys.stderr.write(f"penstock controller: {message}\n")
    return code

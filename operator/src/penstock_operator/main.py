"""`python -m penstock_operator`: settings, the Lease, Kopf, and a clean end.

    start ─▶ serve health ─▶ stand by until the Lease is ours ─▶ watch and reconcile ─▶ release

Exit codes: 0 after SIGTERM or SIGINT; 1 when the Lease was lost or watching failed (Kubernetes
restarts the process, as a standby); 2 for invalid settings, with one line on stderr.
"""

import argparse
import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import kopf

from penstock.errors import MisuseError
from penstock.kubernetes.api import Api
from penstock.kubernetes.connect import connect
from penstock.kubernetes.errors import KubernetesError
from penstock.kubernetes.lease import Lease
from penstock.kubernetes.names import API_VERSION
from penstock.kubernetes.resources import LeaseObject
from penstock.logs import EventLog, configure_logging
from penstock_operator.events import Events
from penstock_operator.handlers import kopf_settings, register
from penstock_operator.health import serve_health
from penstock_operator.kube import TIMEOUTS, Kube
from penstock_operator.lease import Leadership, LeaseLostError
from penstock_operator.metrics import Metrics
from penstock_operator.names import FIELD_MANAGER
from penstock_operator.objects import Installation
from penstock_operator.objects.images import repository
from penstock_operator.repeated import Repeated
from penstock_operator.worker import Deps
from penstock_operator.workers import Workers

LEASE: Final = "penstock-operator"
CUSTOM_RESOURCES: Final = frozenset({"clusters", "topics", "consumergroups"})
CRDS_AGAIN_S: Final = 5.0
_log = EventLog("penstock_operator.main")


class _Stop(Exception):  # noqa: N818 - not an error: the way out of the task group
    """A signal asked for a clean stop, or Kopf ended by itself."""


class _WatchingEndedError(Exception):
    """One watch failed for good, and ended all others."""


@dataclass(frozen=True, slots=True)
class Settings:
    """`namespaces` empty: all. `namespace`: of the Lease; empty: the pod's or the kubeconfig's."""

    installation: Installation
    namespaces: tuple[str, ...]
    namespace: str
    identity: str
    health_listen: tuple[str, int]
    log_level: str


def read_settings(argv: Sequence[str] | None = None) -> Settings:
    """From the command line, with defaults from the environment."""
    parser = argparse.ArgumentParser(
        prog="python -m penstock_operator",
        description="Reconciles Cluster and Topic resources.",
        epilog="example: python -m penstock_operator --broker-image penstock-broker:1.0",
    )
    add, env = parser.add_argument, os.environ
    add(
        "--broker-image",
        default=env.get("PENSTOCK_BROKER_IMAGE", ""),
        help="image of brokers and controllers",
    )
    add(
        "--namespaces",
        default=env.get("PENSTOCK_WATCH_NAMESPACES", ""),
        help="watch only these, separated by commas; empty: all",
    )
    _add_installation(parser)
    add("--namespace", default=env.get("POD_NAMESPACE", ""), help="namespace of the Lease")
    add(
        "--health-listen",
        default="0.0.0.0:8080",
        metavar="HOST:PORT",
        help="address of /healthz, /readyz and /metrics",
    )
    add("--log-level", default="INFO", choices=("DEBUG", "INFO", "WARNING", "ERROR"))
    args = parser.parse_args(argv)
    if not args.broker_image:
        parser.error(
            "--broker-image (PENSTOCK_BROKER_IMAGE) is missing; set it to the broker image"
        )
    return Settings(
        installation=Installation(
            image=args.broker_image,
            allowed_images=(repository(args.broker_image), *_words(args.allowed_images)),
            pull_secrets=_words(args.broker_pull_secrets),
            controller_role=args.controller_role,
            api_server_ports=_ports(parser, args.api_server_ports),
            namespace=args.namespace,
            namespaces=_words(args.namespaces),
        ),
        namespaces=_words(args.namespaces),
        namespace=args.namespace,
        identity=env.get("POD_NAME", socket.gethostname()),
        health_listen=_address(parser, args.health_listen),
        log_level=args.log_level,
    )


def _add_installation(parser: argparse.ArgumentParser) -> None:
    """What a chart knows about the place where the operator runs."""
    add, env = parser.add_argument, os.environ
    add(
        "--allowed-images",
        default=env.get("PENSTOCK_ALLOWED_IMAGES", ""),
        help="repositories that spec.image of a Cluster may name, separated by commas; `x/*`: all "
        "below x, `*`: any; empty: only that of --broker-image",
    )
    add(
        "--broker-pull-secrets",
        default=env.get("PENSTOCK_BROKER_PULL_SECRETS", ""),
        help="pull secrets of brokers and controllers, separated by commas; the Secrets must be in "
        "each Cluster's namespace",
    )
    add(
        "--controller-role",
        default=env.get("PENSTOCK_CONTROLLER_ROLE", "penstock-controller"),
        help="the ClusterRole to bind controllers to, each in its namespace",
    )
    add(
        "--api-server-ports",
        default=env.get("PENSTOCK_API_SERVER_PORTS", "443,6443"),
        help="what network policies let controllers reach outside their cluster; empty: anything",
    )


def _words(text: str) -> tuple[str, ...]:
    return tuple(each.strip() for each in text.split(",") if each.strip())


def _ports(parser: argparse.ArgumentParser, text: str) -> tuple[int, ...]:
    found = _words(text)
    for each in found:
        if not each.isdecimal() or not 0 < int(each) <= 65_535:
            parser.error(
                f"--api-server-ports is {text!r}; it must be ports from 1 to 65535, separated by "
                "commas, such as 443,6443"
            )
    return tuple(int(each) for each in found)


def _address(parser: argparse.ArgumentParser, text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65_535:
        parser.error(f"--health-listen is {text!r}; it must be HOST:PORT, such as 0.0.0.0:8080")
    return host, int(port)


async def serve(settings: Settings) -> int:
    """Runs until a signal or until the Lease is lost; the exit code."""
    api = connect(FIELD_MANAGER, TIMEOUTS, namespace=settings.namespace or None)
    kube = Kube(api)
    metrics = Metrics()
    lease = _candidate(settings, api)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    running: list[Workers] = []

    def refresh() -> float:
        metrics.api_calls.set(kube.calls)
        metrics.api_writes.set(kube.writes)
        metrics.oldest_pass.set(max((each.oldest_success_s for each in running), default=0.0))
        # To start again helps a worker that hangs, not one that is refused.
        return max((each.oldest_pass_s for each in running), default=0.0)

    code = 0
    try:
        async with (
            serve_health(settings.health_listen, metrics, refresh),
            asyncio.TaskGroup() as group,
        ):
            group.create_task(_until(stop), name="signals")
            await lease.acquire()
            metrics.leader.set(1)
            group.create_task(lease.hold(), name="lease")
            events = Events(kube, settings.identity)
            deps = Deps(kube, events, metrics, settings.installation, lease)
            workers = Workers(deps, group)
            running.append(workers)
            await _custom_resources(kube)
            await _watch(settings, workers, stop)
            stop.set()
    except* _Stop:
        _log.info("stopping")
    except* LeaseLostError as lost:
        _log.error("lease lost", reason=str(lost.exceptions[0]))
        code = 1
    except* _WatchingEndedError as ended:
        _log.error("watching failed: another process begins", reason=str(ended.exceptions[0]))
        code = 1
    await lease.release()
    kube.close()
    return code


def _candidate(settings: Settings, api: Api) -> Leadership:
    holder = f"{settings.identity}-{os.getpid()}"
    return Leadership(Lease(api, LeaseObject(api.namespace, LEASE)), holder)


async def _watch(settings: Settings, workers: Workers, stop: asyncio.Event) -> None:
    """Kopf's event loop part, until `stop`. Raises _WatchingEndedError; Kopf has cancelled the
    workers then, too."""
    everywhere = not settings.namespaces
    try:
        await kopf.operator(
            registry=register(workers, everywhere=everywhere),
            settings=kopf_settings(cluster_wide=everywhere),
            standalone=True,
            # Kopf would make one from the system's user name, which a pod's user may not have.
            identity=settings.identity,  # type: ignore[arg-type]  # its NewType is not public
            clusterwide=everywhere,
            namespaces=settings.namespaces,
            stop_flag=stop,
        )
    except Exception as error:
        raise _WatchingEndedError(f"{type(error).__name__}: {error}") from error


async def _custom_resources(kube: Kube) -> None:
    """Until they are served. With named namespaces, Kopf looks once which there are."""
    missing = ""
    while True:
        try:
            absent = CUSTOM_RESOURCES - await kube.served(API_VERSION)
            if not absent:
                return
            found = f"{', '.join(sorted(absent))}: apply the CRDs of this release"
        except KubernetesError as error:
            found = str(error)
        if found != missing:
            _log.warning("no custom resources yet", missing=found)
        missing = found
        await asyncio.sleep(CRDS_AGAIN_S)


async def _until(stop: asyncio.Event) -> None:
    await stop.wait()
    raise _Stop


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the operator; see the module for the exit codes."""
    settings = read_settings(argv)
    configure_logging(
        "penstock_operator", settings.log_level, process="operator", pod=settings.identity
    )
    for handler in logging.getLogger().handlers:
        handler.addFilter(Repeated())
    try:
        return asyncio.run(serve(settings))
    except (MisuseError, OSError) as error:
        sys.stderr.write(f"penstock operator: {error}\n")
        return 2

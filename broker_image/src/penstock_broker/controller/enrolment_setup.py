"""What a controller needs to enrol brokers, put together from its options.

    --ca-certificate, --ca-key ─▶ cluster id from the store ─▶ own certificate ─▶ `--tls-…`
                                                           └─▶ the port, the keys, the trust

Without these options nothing of this exists, and certificates are files that somebody else makes.
"""

import argparse
import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from time import sleep
from typing import Final

from penstock.core.control.documents import CLUSTER_KEY, decode_cluster
from penstock.errors import ErrorCode, MisuseError
from penstock.kubernetes.names import ClusterNames
from penstock.rpc.tls import Tls
from penstock_broker.certificates.enrolment import controller_subject
from penstock_broker.controller import oidc
from penstock_broker.controller.enrolment import EnrolmentService, serve_enrolment
from penstock_broker.controller.enrolment_authority import AuthorityFiles, OwnCertificate
from penstock_broker.controller.enrolment_issuers import (
    IssuersInFile,
    IssuersSource,
    PublishedIssuers,
    document_of,
)
from penstock_broker.controller.metadata_store.interface import (
    BlockingStore,
    StoreUnavailableError,
)
from penstock_broker.observability import EventLog

_RETRY_S: Final = 1.0
_GRACE_S: Final = 0.5
_THREADS: Final = 2
PUBLISH_EVERY_S: Final = 20.0
API_EVERY_S: Final = 60.0
"""Between two looks at the API server: tokens last for ten minutes at least, and are renewed when a
fifth of that is left. Brokers must know before then that it is unavailable."""
_events = EventLog("enrolment")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`--enrol-listen` and what goes with it."""
    add = parser.add_argument
    add(
        "--enrol-listen",
        default=os.environ.get("PENSTOCK_ENROL_LISTEN", ""),
        metavar="HOST:PORT",
        help="for brokers to get their certificates; needs --ca-certificate, --ca-key, --cluster "
        "and --namespace; default: $PENSTOCK_ENROL_LISTEN",
    )
    add("--ca-certificate", type=Path, metavar="FILE", help="the cluster's CA, PEM")
    add("--ca-key", type=Path, metavar="FILE", help="the key of the CA, PEM")
    add(
        "--certificate-host",
        action="append",
        default=[],
        metavar="HOST",
        help="a name or address besides those of Kubernetes in every certificate; repeatable",
    )
    add(
        "--new-cluster-id",
        default="",
        metavar="ID",
        help="id of the cluster if it is new; an existing one keeps its own",
    )
    add(
        "--enrol-issuers",
        type=Path,
        metavar="FILE",
        help="JSON, as a broker's --token-issuers; default with --metadata=kubernetes: the API "
        "server's own",
    )
    add(
        "--oidc-issuers",
        default=os.environ.get(oidc.VARIABLE, ""),
        metavar="JSON",
        help="whose tokens of people let users in: a list of objects with issuer, audience, and if "
        "not sub and none, usernameClaim and groupsClaim; their keys are fetched; default: "
        f"${oidc.VARIABLE}",
    )


@asynccontextmanager
async def running(
    enrolling: "Enrolling | None", tls: Tls | None, args: argparse.Namespace
) -> AsyncIterator[None]:
    """Enrols brokers while the block runs, if the options ask for it. Raises MisuseError."""
    if enrolling is None:
        yield
        return
    assert tls is not None, "`enrolling_of` made a certificate"
    with (
        ThreadPoolExecutor(_THREADS, "enrolment") as executor,
        _around(args, executor) as around,
        oidc.with_oidc(around.issuers, args.oidc_issuers) as issuers,
    ):
        async with enrolling.running(tls, replace(around, issuers=issuers), executor):
            yield


@contextmanager
def _around(args: argparse.Namespace, executor: Executor) -> Iterator["Around"]:
    """Raises MisuseError."""
    if args.enrol_issuers is not None:
        yield Around(IssuersInFile(args.enrol_issuers))
        return
    if args.metadata != "kubernetes":
        raise MisuseError(
            "to enrol brokers without --metadata=kubernetes, give --enrol-issuers FILE",
            ErrorCode.INVALID_CONFIG,
        )
    # Only here: the client takes 25 MB and a second, which local mode does not need.
    from penstock.kubernetes.connect import connect  # noqa: PLC0415
    from penstock.kubernetes.issuer import published_issuer  # noqa: PLC0415
    from penstock.kubernetes.resources import path_of  # noqa: PLC0415
    from penstock_broker.controller.enrolment_trust import try_to_publish  # noqa: PLC0415
    from penstock_broker.controller.metadata_store.kubernetes import TIMEOUTS  # noqa: PLC0415
    from penstock_broker.controller.metadata_store.kubernetes_objects import (  # noqa: PLC0415
        ClusterObjects,
    )

    names = ClusterNames(args.cluster, args.namespace)
    objects = ClusterObjects(args.cluster, args.namespace, args.owner_uid, args.owner_name)
    api = connect("penstock-controller", TIMEOUTS)

    def fetch() -> bytes:
        found = published_issuer(api)
        # The API server publishes keys without its database, and renews no tokens then.
        api.list(
            path_of("ConfigMap", names.namespace), fieldSelector=f"metadata.name={names.trust}"
        )
        return document_of(*found, names.audience)

    try:
        yield Around(
            PublishedIssuers(fetch, executor, every_s=API_EVERY_S),
            lambda certificate: try_to_publish(api, objects, certificate),
        )
    finally:
        api.close()


@dataclass(frozen=True, slots=True)
class Around:
    """What differs between Kubernetes and one machine. `publish` tells clients of the CA; it
    returns False if it must be tried again."""

    issuers: IssuersSource
    publish: Callable[[bytes], bool] | None = None


class Enrolling:
    """Of one controller. `close` it at the end."""

    def __init__(
        self, args: argparse.Namespace, cluster_id: str, authority: AuthorityFiles
    ) -> None:
        """Raises MisuseError."""
        self.cluster_id = cluster_id
        self._listen: str = args.enrol_listen
        self._names = ClusterNames(args.cluster, args.namespace)
        self._hosts: Sequence[str] = args.certificate_host
        self._authority = authority
        subject = controller_subject(cluster_id, self._names, self._hosts)
        self.own = OwnCertificate(authority, subject)

    def close(self) -> None:
        """Removes the controller's own certificate and key."""
        self.own.close()

    @asynccontextmanager
    async def running(self, tls: Tls, around: Around, executor: Executor) -> AsyncIterator[None]:
        """Enrols brokers while the block runs. `executor` checks tokens, and publishes."""
        service = EnrolmentService(
            self._authority.load,
            around.issuers,
            executor,
            cluster_id=self.cluster_id,
            names=self._names,
            hosts=self._hosts,
        )
        server = await serve_enrolment(service, tls, self._listen)
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(self.own.keep(), name="own certificate"),
                    group.create_task(around.issuers.run(), name="issuers"),
                    group.create_task(self._publish(around, executor), name="trust"),
                ]
                yield
                for task in tasks:
                    task.cancel()
        finally:
            await server.stop(_GRACE_S)

    async def _publish(self, around: Around, executor: Executor) -> None:
        """Now, and again every 20 s in case somebody removed it."""
        if around.publish is None:
            return
        loop = asyncio.get_running_loop()
        while True:
            try:
                certificate = self._authority.load().certificate
            except MisuseError as error:
                _events.error("the CA cannot be read", reason=error.message)
                done = True
            else:
                done = await loop.run_in_executor(executor, around.publish, certificate)
            await asyncio.sleep(PUBLISH_EVERY_S if done else _RETRY_S)


def enrolling_of(args: argparse.Namespace, store: BlockingStore) -> Enrolling | None:
    """None: the options do not ask for it. Points `--tls-…` in `args` at the controller's own
    certificate, and sets the cluster id. Waits while the store is unavailable.

    Raises PenstockError.
    """
    if args.ca_certificate is None and args.ca_key is None and not args.enrol_listen:
        if args.oidc_issuers:
            raise MisuseError(
                f"--oidc-issuers (${oidc.VARIABLE}) needs a controller that enrols brokers, which "
                "hands them the keys: give --ca-certificate, --ca-key and --enrol-listen too, or "
                "give brokers the keys by --token-issuers",
                ErrorCode.INVALID_CONFIG,
            )
        return None
    needed = {
        "--ca-certificate": args.ca_certificate,
        "--ca-key": args.ca_key,
        "--enrol-listen": args.enrol_listen,
        "--cluster": args.cluster,
        "--namespace": args.namespace,
    }
    if missing := [option for option, value in needed.items() if not value]:
        raise MisuseError(
            f"to enrol brokers, a controller also needs {', '.join(missing)}",
            ErrorCode.INVALID_CONFIG,
        )
    if args.tls_certificate or args.tls_key:
        raise MisuseError(
            "a controller with a CA makes its own certificate; remove --tls-certificate and "
            "--tls-key, or --ca-certificate, --ca-key and --enrol-listen",
            ErrorCode.INVALID_CONFIG,
        )
    authority = AuthorityFiles(args.ca_certificate, args.ca_key)
    authority.load()  # before anything waits
    args.cluster_id = _known_cluster_id(store) or args.cluster_id or args.new_cluster_id
    if not args.cluster_id:
        raise MisuseError(
            "certificates name the cluster's id, and this cluster is new; give --new-cluster-id",
            ErrorCode.INVALID_CONFIG,
        )
    made = Enrolling(args, args.cluster_id, authority)
    files = made.own.files
    args.tls_ca = args.tls_ca or files.ca
    args.tls_certificate, args.tls_key = files.certificate, files.key
    return made


def _known_cluster_id(store: BlockingStore) -> str:
    """The id in the store; "" of a new cluster. Blocks until the store answers."""
    said = ""
    while True:
        try:
            found = store.read_all().get(CLUSTER_KEY)
        except StoreUnavailableError as error:
            if str(error) != said:
                said = str(error)
                _events.warning("waiting for the store, for the cluster's id", reason=said)
            sleep(_RETRY_S)
        else:
            return decode_cluster(found.text, CLUSTER_KEY).cluster_id if found else ""

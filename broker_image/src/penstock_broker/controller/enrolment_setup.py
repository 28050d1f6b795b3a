"""What a controller needs to enrol brokers, put together from its options.

    --ca-certificate, --ca-key ─▶ cluster id from the store ─▶ own certificate ─▶ `--tls-…`
    --second-ca                                            └─▶ the port, the keys, the trust

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
from typing import TYPE_CHECKING, Final

from penstock.core.control.documents import CLUSTER_KEY, decode_cluster
from penstock.errors import ErrorCode, MisuseError, PenstockError
from penstock.kubernetes.names import ClusterNames
from penstock.rpc.tls import Tls
from penstock_broker.certificates.enrolment import controller_subject
from penstock_broker.certificates.rotation import Rotation, Slot
from penstock_broker.controller import oidc
from penstock_broker.controller.ca_rotation import (
    AGAIN_S,
    REST_S,
    Brokers,
    CaRotation,
    ThisController,
    first_guess,
    roots_of,
)
from penstock_broker.controller.enrolment import EnrolmentService, serve_enrolment
from penstock_broker.controller.enrolment_authority import (
    Authorities,
    AuthorityFiles,
    OwnCertificate,
)
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

if TYPE_CHECKING:
    from penstock.kubernetes.api import Api
    from penstock_broker.controller.enrolment_trust import TrustMap

_RETRY_S: Final = 1.0
_GRACE_S: Final = 0.5
_THREADS: Final = 2
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
        "--second-ca",
        type=Path,
        metavar="DIR",
        help="where tls.crt and tls.key of another CA appear when the CA is to be replaced by it, "
        "and the other way round the next time; needs --metadata=kubernetes",
    )
    add(
        "--controllers",
        type=_at_least_one,
        default=1,
        metavar="N",
        help="how many controllers there are, of whom each must have loaded another CA before it "
        "is used; default: 1",
    )
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


def _at_least_one(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number from 1")
    return int(text)


@dataclass(frozen=True, slots=True)
class Controller:
    """The process. `name`: of this run. `brokers`: see `ControllerRuntime.tls_of_brokers`."""

    name: str
    brokers: Callable[[], Brokers | None]


@asynccontextmanager
async def running(
    enrolling: "Enrolling | None", tls: Tls | None, args: argparse.Namespace, of: Controller
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
        this = ThisController(of.name, args.controllers, tls)
        everything = replace(around, issuers=issuers)
        async with enrolling.running(this, everything, executor, of.brokers):
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
    with _trust_map(args) as (api, trust):
        # Only here: the client takes 25 MB and a second, which local mode does not need.
        from penstock.kubernetes.issuer import published_issuer  # noqa: PLC0415
        from penstock.kubernetes.resources import path_of  # noqa: PLC0415

        names = ClusterNames(args.cluster, args.namespace)

        def fetch() -> bytes:
            found = published_issuer(api)
            # The API server publishes keys without its database, and renews no tokens then.
            api.list(
                path_of("ConfigMap", names.namespace), fieldSelector=f"metadata.name={names.trust}"
            )
            return document_of(*found, names.audience)

        yield Around(PublishedIssuers(fetch, executor, every_s=API_EVERY_S), trust)


@contextmanager
def _trust_map(args: argparse.Namespace) -> "Iterator[tuple[Api, TrustMap]]":
    # Only here, as above.
    from penstock.kubernetes.connect import connect  # noqa: PLC0415
    from penstock_broker.controller.enrolment_trust import TrustMap  # noqa: PLC0415
    from penstock_broker.controller.metadata_store.kubernetes import TIMEOUTS  # noqa: PLC0415
    from penstock_broker.controller.metadata_store.kubernetes_objects import (  # noqa: PLC0415
        ClusterObjects,
    )

    objects = ClusterObjects(args.cluster, args.namespace, args.owner_uid, args.owner_name)
    api = connect("penstock-controller", TIMEOUTS)
    try:
        yield api, TrustMap(api, objects)
    finally:
        api.close()


@dataclass(frozen=True, slots=True)
class Around:
    """What differs between Kubernetes and one machine. `trust` tells clients of the CAs."""

    issuers: IssuersSource
    trust: "TrustMap | None" = None


class Enrolling:
    """Of one controller. `close` it at the end."""

    def __init__(
        self,
        args: argparse.Namespace,
        cluster_id: str,
        authorities: Authorities,
        rotation: Rotation,
    ) -> None:
        """Raises MisuseError."""
        self.cluster_id = cluster_id
        self._listen: str = args.enrol_listen
        self._names = ClusterNames(args.cluster, args.namespace)
        self._hosts: Sequence[str] = args.certificate_host
        subject = controller_subject(cluster_id, self._names, self._hosts)
        signer, found = authorities.load(rotation.signer), authorities.found()
        self.own = OwnCertificate(subject, signer, roots_of(rotation, found))
        self._rotation = CaRotation(rotation, authorities, self.own)

    def close(self) -> None:
        """Removes the controller's own certificate and key."""
        self.own.close()

    @asynccontextmanager
    async def running(
        self,
        this: ThisController,
        around: Around,
        executor: Executor,
        brokers: Callable[[], Brokers | None],
    ) -> AsyncIterator[None]:
        """Enrols brokers while the block runs. `executor` checks tokens, and publishes."""
        service = EnrolmentService(
            self._rotation.signer,
            around.issuers,
            executor,
            cluster_id=self.cluster_id,
            names=self._names,
            hosts=self._hosts,
        )
        server = await serve_enrolment(service, this.tls, self._listen)
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(around.issuers.run(), name="issuers"),
                    group.create_task(self._keep(this, around, executor, brokers), name="CA"),
                ]
                yield
                for task in tasks:
                    task.cancel()
        finally:
            await server.stop(_GRACE_S)

    async def _keep(
        self,
        this: ThisController,
        around: Around,
        executor: Executor,
        brokers: Callable[[], Brokers | None],
    ) -> None:
        """The own certificate and what clients are told: now, and again in case somebody changed
        something."""
        loop = asyncio.get_running_loop()
        rotation, said = self._rotation, ""
        while True:
            pause_s = REST_S
            try:
                if around.trust is None:
                    await loop.run_in_executor(executor, rotation.use, this.tls)
                else:
                    pause_s = await loop.run_in_executor(
                        executor, rotation.look, this, around.trust, brokers()
                    )
                said = ""
            except PenstockError as error:
                pause_s = AGAIN_S
                if error.message != said:
                    said = error.message
                    _events.warning("the CA's state is not read or written", reason=said)
            await asyncio.sleep(pause_s)


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
    slots = {Slot.FIRST: AuthorityFiles(args.ca_certificate, args.ca_key)}
    if args.second_ca is not None:
        if args.metadata != "kubernetes":
            raise MisuseError("--second-ca needs --metadata=kubernetes", ErrorCode.INVALID_CONFIG)
        slots[Slot.SECOND] = AuthorityFiles(
            args.second_ca / "tls.crt", args.second_ca / "tls.key", "--second-ca"
        )
    authorities = Authorities(slots)
    if not authorities.found():
        authorities.load(Slot.FIRST)  # raises, before anything waits
    args.cluster_id = _known_cluster_id(store) or args.cluster_id or args.new_cluster_id
    if not args.cluster_id:
        raise MisuseError(
            "certificates name the cluster's id, and this cluster is new; give --new-cluster-id",
            ErrorCode.INVALID_CONFIG,
        )
    rotation = first_guess(authorities.found())
    if args.metadata == "kubernetes":
        rotation = _known_rotation(args) or rotation
    made = Enrolling(args, args.cluster_id, authorities, rotation)
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


def _known_rotation(args: argparse.Namespace) -> Rotation | None:
    """As controllers have written it; None: they have not. Blocks until the API server answers."""
    said = ""
    with _trust_map(args) as (_, trust):
        while True:
            try:
                return trust.read().shown.rotation
            except PenstockError as error:
                if error.message != said:
                    said = error.message
                    _events.warning("waiting for the API server, for the CA's state", reason=said)
                sleep(_RETRY_S)

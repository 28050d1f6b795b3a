"""Brokers get their certificates here: a port of its own, where a pod shows its token.

    --enrol-listen ─ token ─▶ identify: which broker is this pod? ─▶ Enrol: sign what it may have
                                                                └─▶ ListTokenIssuers: public keys

Nothing else is served there: no health, no reflection. The port is open to the cluster's pods, and
labels prove nothing: who shows no token of a broker's pod gets 90 or 91, whatever it calls.
"""
# ruff: noqa: ARG002, N802 - gRPC fixes the names and the arguments of these methods

import asyncio
import math
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from time import time_ns
from typing import Any, Final

import grpc

from penstock.errors import ClusterError, ErrorCode, MisuseError
from penstock.kubernetes.names import ClusterNames
from penstock.proto.v1 import enrolment_pb2 as pb
from penstock.proto.v1.enrolment_pb2_grpc import (
    EnrolmentServiceServicer,
    add_EnrolmentServiceServicer_to_server,
)
from penstock.rpc.channel import SERVER_OPTIONS, connection_options
from penstock.rpc.tls import Tls
from penstock_broker.certificates.authority import Authority
from penstock_broker.certificates.enrolment import PodToken, broker_of_pod, broker_subject
from penstock_broker.certificates.names import ServerName
from penstock_broker.controller.enrolment_authority import fingerprint_of
from penstock_broker.controller.enrolment_issuers import IssuersSource
from penstock_broker.observability import EventLog, bound_address
from penstock_broker.serving.callers import Caller, Role, caller
from penstock_broker.serving.edge import Edge
from penstock_broker.serving.open_streams import OpenStreams
from penstock_broker.serving.tokens.checking import verified
from penstock_broker.serving.tokens.issuers import Issuers, parse_issuers

RPCS_MAX: Final = 256
"""Calls at one time: more than there may be brokers."""
_SCHEME: Final = "bearer "
_events = EventLog("enrolment")


class EnrolmentService(EnrolmentServiceServicer):
    """Knows the cluster, and signs for its brokers."""

    def __init__(
        self,
        authority: Callable[[], Authority],
        issuers: IssuersSource,
        executor: Executor,
        *,
        cluster_id: str,
        names: ClusterNames,
        hosts: Sequence[str],
    ) -> None:
        """`authority` is asked for each signature: the CA may have been renewed. `executor` checks
        tokens. `hosts`: see `broker_subject`."""
        self._authority = authority
        self._issuers = issuers
        self._executor = executor
        self._cluster_id = cluster_id
        self._names = names
        self._hosts = tuple(hosts)

    async def identify(self, context: Any) -> Caller:
        """See `Identify`: a caller is a broker, or nobody who gets further."""
        token = _token_of(context)
        known = await self._issuers.document()
        try:
            proved = await self._verify(token, known)
        except ClusterError:
            # Perhaps the API server signs with another key by now.
            newest = await self._issuers.look_again()
            if newest == known:
                raise
            proved = await self._verify(token, newest)
        broker_id = broker_of_pod(proved, self._names)
        name = ServerName(self._cluster_id, broker_id)
        return Caller(Role.BROKER, name.uri, broker_id=broker_id)

    async def _verify(self, token: str, document: bytes) -> PodToken:
        """Raises ClusterError."""
        issuers = _of_pods(document, self._names.enrolment_audience)
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(
            self._executor, verified, token, issuers, time_ns() / 1e9
        )
        return PodToken(found.principal, found.pod)

    # ------------------------------------------------------------ EnrolmentService

    async def Enrol(
        self,
        request: pb.EnrolRequest,
        context: Any,
    ) -> pb.EnrolResponse:
        """Of the CSR only the key counts."""
        who = ServerName.parse(caller().principal)
        assert who is not None, "identify lets only brokers in"
        assert who.broker_id is not None, "identify lets only brokers in"
        subject = broker_subject(who.cluster_id, who.broker_id, self._names, self._hosts)
        try:
            chain = self._authority().sign(request.csr, subject)
        except MisuseError as error:
            if error.code is ErrorCode.INVALID_REQUEST:
                raise
            # The caller can do nothing about a CA that cannot be read.
            _events.error("the CA cannot sign", reason=error.message)
            raise ClusterError(
                "the controller cannot read its CA; see its log", ErrorCode.AUTH_NOT_READY
            ) from error
        _events.info("signed a certificate", name=who.uri)
        return pb.EnrolResponse(certificate_chain=chain)

    async def ListTokenIssuers(
        self,
        request: pb.ListTokenIssuersRequest,
        context: Any,
    ) -> pb.ListTokenIssuersResponse:
        """As JSON; and which CA signs now, which brokers ask for by the way."""
        source = self._issuers
        document = await (source.look_again() if request.refresh else source.document())
        return pb.ListTokenIssuersResponse(
            issuers=document,
            signing_ca=self._signing_ca(),
            api_unavailable_ms=math.ceil(source.unavailable_s * 1000),
        )

    def _signing_ca(self) -> str:
        try:
            return fingerprint_of(self._authority())
        except MisuseError:
            return ""  # the log says it when something must be signed


async def serve_enrolment(service: EnrolmentService, tls: Tls, listen: str) -> grpc.aio.Server:
    """A started server on `host:port`. Raises MisuseError if the address is not available."""
    edge = Edge(
        lambda: "",
        lambda _method, _seconds: None,
        streams=OpenStreams(RPCS_MAX),
        identify=service.identify,
    )
    server = grpc.aio.server(
        interceptors=[edge],
        options=[*SERVER_OPTIONS, *connection_options(RPCS_MAX)],
        maximum_concurrent_rpcs=RPCS_MAX,
    )
    add_EnrolmentServiceServicer_to_server(service, server)
    try:
        port = server.add_secure_port(listen, tls.server_credentials(ask_clients=False))
    except RuntimeError as error:
        raise MisuseError(
            f"--enrol-listen {listen} cannot be used; give another address",
            ErrorCode.INVALID_CONFIG,
        ) from error
    await server.start()
    _events.info("enrolling brokers", address=bound_address(listen, port))
    return server


def _of_pods(document: bytes, audience: str) -> Issuers:
    """The issuers of ServiceAccounts' tokens, of tokens for this audience only."""
    try:
        known = parse_issuers(document)
    except MisuseError as error:
        raise ClusterError(
            f"the controller cannot read its issuers of tokens: {error.message}",
            ErrorCode.AUTH_NOT_READY,
        ) from error
    return {
        name: replace(each, audience=audience)
        for name, each in known.items()
        if each.kind == "kubernetes"
    }


def _token_of(context: Any) -> str:
    """Raises ClusterError(UNAUTHENTICATED)."""
    for key, value in context.invocation_metadata():
        if key == "authorization" and value[: len(_SCHEME)].lower() == _SCHEME:
            return str(value[len(_SCHEME) :]).strip()
    raise ClusterError(
        "a token of a broker's pod is needed here: metadata 'authorization: Bearer …'",
        ErrorCode.UNAUTHENTICATED,
    )

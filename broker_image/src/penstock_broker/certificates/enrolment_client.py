"""A broker gets its certificate from a controller, and keeps it and the issuers' keys up to date.

    ensure  before the broker serves: what lies on the disk if it is good, else a new one
    keep    while it serves: renews at two thirds of its life, asks again for the issuers of tokens

    <data-dir>/tls/server.pem          certificate and key in one file, so that they change together
    <data-dir>/tls/token-issuers.json  as `--token-issuers` reads it

While no controller answers, the broker goes on with what it has. Nothing here decides who may have
what: the controller does (`enrolment`).
"""

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

import grpc

from penstock.core.types import BrokerId
from penstock.errors import ErrorCode, MisuseError, PenstockError, UnreachableError
from penstock.logs import EventLog
from penstock.proto.v1 import enrolment_pb2 as pb
from penstock.proto.v1.enrolment_pb2_grpc import EnrolmentServiceStub
from penstock.rpc.channel import open_aio_channel
from penstock.rpc.errors import error_from_rpc
from penstock.rpc.tls import Tls, TlsFiles
from penstock_broker.certificates.authority import generate_csr
from penstock_broker.certificates.enrolment import Judgement, State, is_superseded, judge
from penstock_broker.certificates.last_keys import with_last_keys

if TYPE_CHECKING:  # generated for type checkers only
    from penstock.proto.v1.enrolment_pb2_grpc import EnrolmentServiceAsyncStub

LOOK_EVERY_S: Final = 60.0
ROTATING_EVERY_S: Final = 10.0
"""While more than one CA is trusted."""
_BEGIN: Final = b"-----BEGIN CERTIFICATE-----"
APART_S: Final = 30.0
"""Between two looks for newer issuers that users' tokens ask for."""
_ARRIVED_S: Final = 3.0
"""Until what was fetched is read: `LOOK_EVERY_S` of the file, and a busy machine."""
_RETRY_S: Final = (0.5, 1.0, 2.0, 5.0)
_SAY_AGAIN_S: Final = 30.0
_CALL_S: Final = 10.0
_events = EventLog("penstock_broker.enrolment")
_Answer = TypeVar("_Answer")
_Token: TypeAlias = tuple[tuple[str, str], ...]
"""As the metadata of a call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnrolmentConfig:
    """Where a broker enrols, and what its certificate must be about.

    Attributes:
        controllers: `host:port`; every address of a name is tried.
        token: File with the token of its pod; read for each call.
        trust: PEM file of the CAs that are trusted.
        hosts: Names that clients ask for, and that must be in the certificate.
    """

    broker_id: BrokerId
    folder: Path
    controllers: tuple[str, ...]
    token: Path
    trust: Path
    hosts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ControllerAnswer:
    """What controllers say by the way, when they are asked for the issuers.

    Attributes:
        signer: The fingerprint of the CA that signs now; "": unknown.
        unavailable_s: For how long the API server has not answered; 0: it does.
    """

    signer: str
    unavailable_s: float


class Enrolment:
    """Of one broker. Owns the folder."""

    def __init__(
        self,
        config: EnrolmentConfig,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        now_s: Callable[[], float] = monotonic,
    ) -> None:
        self._config = config
        self._now = now
        self._pem = config.folder / "server.pem"
        self.issuers = config.folder / "token-issuers.json"
        """The file of issuers; there is none before a controller has answered."""
        self._said = ""
        self._said_s = 0.0
        self._now_s = now_s
        self._wanted = asyncio.Event()
        self._wanted_s = self._arrived_s = -inf

    @property
    def files(self) -> TlsFiles:
        """For `Tls`, after `ensure`."""
        return TlsFiles(self._config.trust, self._pem, self._pem)

    async def ensure(self) -> None:
        """Returns once there is a certificate to serve with; waits for a controller if need be.

        Raises MisuseError for files that cannot be read or written.
        """
        self._config.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        attempt = 0
        while (found := self._judge()).state is State.UNUSABLE:
            try:
                await self._enrol(found)
            except MisuseError:
                raise
            except PenstockError as error:
                self._complain("no certificate yet: waiting for a controller", error)
                await asyncio.sleep(_RETRY_S[min(attempt, len(_RETRY_S) - 1)])
                attempt += 1

    async def keep(
        self, heard: Callable[[float], None] = lambda _: None, every_s: float = LOOK_EVERY_S
    ) -> None:
        """Looks after the certificate and the issuers, until cancelled.

        `heard` is told with each answer of controllers for how many seconds the API server has been
        unavailable; 0: it answers.
        """
        while True:
            try:
                found = self._judge()
                if found.state is not State.GOOD:
                    await self._enrol(found)
                answer = await self._fetch_issuers(refresh=self._wanted.is_set())
                heard(answer.unavailable_s)
                if self._is_superseded(answer.signer):
                    await self._enrol(Judgement(State.AGING, "another CA signs now"), answer.signer)
                self._said = ""
            except PenstockError as error:
                self._complain("certificate and issuers stay as they are", error)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wanted.wait(), self._pause_s(every_s))

    def look_again(self) -> bool:
        """A user shows a key that is not known. See `LookAgain`."""
        now_s = self._now_s()
        if self._wanted.is_set() or now_s - self._arrived_s < _ARRIVED_S:
            return True
        if now_s - self._wanted_s < APART_S:
            return False
        self._wanted_s = now_s
        self._wanted.set()
        return True

    def _judge(self) -> Judgement:
        """Raises MisuseError."""
        config = self._config
        roots = _read(config.trust, "--enrol-ca")
        try:
            pem = self._pem.read_bytes()
        except FileNotFoundError:
            return Judgement(State.UNUSABLE, "there is none yet")
        except OSError as error:
            raise _unusable(self._pem, error) from error
        return judge(pem, roots, config.broker_id, config.hosts, self._now())

    def _is_superseded(self, signer: str) -> bool:
        roots = _read(self._config.trust, "--enrol-ca")
        return bool(signer) and is_superseded(self._pem.read_bytes(), roots, signer)

    def _pause_s(self, every_s: float) -> float:
        """Shorter while a CA is replaced by another, because others wait for this broker."""
        try:
            several = self._config.trust.read_bytes().count(_BEGIN) > 1
        except OSError:
            several = False
        return min(every_s, ROTATING_EVERY_S) if several else every_s

    async def _enrol(self, why: Judgement, signer: str = "") -> None:
        """`signer`: the CA that must sign; empty: any."""
        csr, key = generate_csr()
        request = pb.EnrolRequest(csr=csr)
        answer = await self._ask(
            lambda stub, token: stub.Enrol(request, timeout=_CALL_S, metadata=token)
        )
        pem = answer.certificate_chain + key
        roots = _read(self._config.trust, "--enrol-ca")
        got = judge(pem, roots, self._config.broker_id, self._config.hosts, self._now())
        if got.state is not State.GOOD:
            raise UnreachableError(
                f"the certificate that the controller gave is no use: {got.reason}"
            )
        if signer and is_superseded(pem, roots, signer):
            raise UnreachableError("the controller that answered signs with the former CA still")
        self._replace(self._pem, pem)
        _events.info("enrolled", broker=int(self._config.broker_id), because=why.reason)

    async def _fetch_issuers(self, *, refresh: bool) -> ControllerAnswer:
        """The API server is not unavailable if any controller says so: another may be cut off
        alone."""
        request = pb.ListTokenIssuersRequest(refresh=refresh)
        try:
            answer = await self._ask(
                lambda stub, token: stub.ListTokenIssuers(request, timeout=_CALL_S, metadata=token),
                lambda answer: answer.api_unavailable_ms == 0,
            )
        finally:
            if refresh:
                self._wanted.clear()
        if refresh:
            self._arrived_s = self._now_s()
        before = self.issuers.read_bytes() if self.issuers.exists() else b""
        found = with_last_keys(answer.issuers, before)
        if found != before:
            self._replace(self.issuers, found)
            _events.info("the issuers of tokens changed", bytes=len(found))
        return ControllerAnswer(answer.signing_ca, answer.api_unavailable_ms / 1000)

    async def _ask(
        self,
        call: "Callable[[EnrolmentServiceAsyncStub, _Token], Awaitable[_Answer]]",
        is_enough: Callable[[_Answer], bool] = lambda _: True,
    ) -> _Answer:
        """The first answer of a controller that is enough, or else the first one.

        Raises PenstockError if there is none: why the last one gave none.
        """
        token = _read(self._config.token, "--enrol-token").decode("ascii", "replace").strip()
        tls = Tls(TlsFiles(self._config.trust))
        failure: PenstockError = UnreachableError("there is no address of a controller")
        answers: list[_Answer] = []
        for host, address in await self._addresses():
            async with open_aio_channel(address, tls, known_as=host) as channel:
                stub: EnrolmentServiceAsyncStub = EnrolmentServiceStub(channel)
                try:
                    answers.append(await call(stub, (("authorization", f"Bearer {token}"),)))
                except grpc.aio.AioRpcError as error:
                    failure = error_from_rpc(error, address)
                    continue
            if is_enough(answers[-1]):
                return answers[-1]
        if not answers:
            raise failure
        return answers[0]

    async def _addresses(self) -> list[tuple[str, str]]:
        """Name and address of every controller."""
        loop = asyncio.get_running_loop()
        found = []
        for each in self._config.controllers:
            host, _, port = each.rpartition(":")
            host = host.strip("[]")
            try:
                known = await loop.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
            except (OSError, UnicodeError) as error:
                raise UnreachableError(f"{host} cannot be resolved: {error}") from error
            for family, _, _, _, endpoint in known:
                ip = f"[{endpoint[0]}]" if family == socket.AF_INET6 else str(endpoint[0])
                found.append((host, f"{ip}:{port}"))
        return found

    def _replace(self, path: Path, content: bytes) -> None:
        """Atomic and durable; only this user can read it."""
        temporary = path.with_name(f"{path.name}.new")
        try:
            temporary.unlink(missing_ok=True)
            temporary.touch(mode=0o600, exist_ok=False)
            with temporary.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except OSError as error:
            raise _unusable(path, error) from error

    def _complain(self, what: str, error: PenstockError) -> None:
        """Says the same only twice a minute."""
        if error.message != self._said or monotonic() - self._said_s >= _SAY_AGAIN_S:
            self._said, self._said_s = error.message, monotonic()
            _events.warning(what, reason=error.message)


def _read(path: Path, option: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise MisuseError(
            f"{option} {path} cannot be read: {error.strerror or error}", ErrorCode.INVALID_CONFIG
        ) from error


def _unusable(path: Path, error: OSError) -> MisuseError:
    return MisuseError(
        f"{path} cannot be used: {error.strerror or error}; it must be in a directory that this "
        "user can write to, with free space",
        ErrorCode.INVALID_CONFIG,
    )

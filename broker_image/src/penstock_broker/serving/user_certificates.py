"""Users who show a certificate: whose CAs count, and who a caller is.

    the users' CA (a file that changes) ─ usable ─▶ `roots`, for the listener's new connections
                └─ unusable: logged, the former stay     └─ gone: nobody gets in
    a call ─ its certificate, which TLS has checked ─▶ `identify` ─▶ Caller("cert:ada")

The users' CAs are never the cluster's: a certificate of a server must not count as a user's, nor
the other way round. As the cluster's CA changes too, this is looked at again with every change.

A connection outlives the CA that let it in, up to its age; the end of its certificate is asked of
every call.
"""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from threading import Lock
from time import monotonic
from typing import Any, Final

from penstock.certificates import USERS_CA_BYTES_MAX, check_users_authorities, new_authority
from penstock.errors import ClusterError, ErrorCode, MisuseError
from penstock.logs import EventLog
from penstock.rpc.tls import LOOK_EVERY_S, Tls
from penstock_broker import observability
from penstock_broker.certificates.users import user_of
from penstock_broker.observability import AUDIT
from penstock_broker.serving.callers import LEEWAY_S, Caller, Role
from penstock_broker.serving.expiry import wall_s
from penstock_broker.serving.listener import host_of_peer

KNOWN_MAX: Final = 10_000
"""Certificates that are remembered, accepted or refused; the oldest goes."""
_events = observability.EventLog("users-ca")
_audit = EventLog(AUDIT)


class UsersCa:
    """The file with the users' CAs. Used from any thread."""

    def __init__(self, path: Path, tls: Tls) -> None:
        """`tls`: of this server. A file that is missing or unusable is no error: until there is
        one, nobody gets in."""
        self._path = path
        self._tls = tls
        self._lock = Lock()
        # gRPC wants some CA. No certificate can be signed by this one: its key is not kept.
        self._nobody, _ = new_authority("no users")
        self._roots = self._nobody
        self._seen: tuple[bytes | None, bytes] | None = None
        self._looked_s = -LOOK_EVERY_S
        self._problem = ""

    @property
    def roots(self) -> bytes:
        """The CAs (PEM) that count now. Looks at the file, but not more often than every 10 s."""
        with self._lock:
            if monotonic() - self._looked_s >= LOOK_EVERY_S:
                self._looked_s = monotonic()
                self._look()
            return self._roots

    @property
    def problem(self) -> str:
        """Why what is in the file is not in use; empty: it is."""
        return self._problem

    def look_now(self) -> None:
        """Looks at the file at the next use, however short the last look is ago."""
        self._looked_s = -LOOK_EVERY_S

    def _look(self) -> None:
        trusted, own = self._tls.certificates
        clusters = trusted + own
        try:
            with self._path.open("rb") as file:
                found = file.read(USERS_CA_BYTES_MAX + 1)
        except OSError as error:
            self._use(self._nobody, f"{self._path} cannot be read: {error.strerror}")
            self._seen = None
            return
        if (found, clusters) == self._seen:
            return
        self._seen = found, clusters
        try:
            check_users_authorities(found, clusters)
        except MisuseError as error:
            self._use(self._still_apart(clusters), f"{self._path}: {error.message}")
        else:
            self._use(found, "")

    def _still_apart(self, clusters: bytes) -> bytes:
        """The former CAs, unless the cluster's servers have come to trust one of them."""
        try:
            check_users_authorities(self._roots, clusters)
        except MisuseError:
            return self._nobody
        return self._roots

    def _use(self, roots: bytes, problem: str) -> None:
        if problem and problem != self._problem:
            _events.error(
                "the users' CA cannot be used",
                reason=problem,
                instead="nobody gets in by certificate" if roots == self._nobody else "the former",
            )
        elif roots != self._roots:
            _events.info("using another users' CA", path=str(self._path))
        self._roots, self._problem = roots, problem


@asynccontextmanager
async def watched(users_ca: UsersCa | None) -> AsyncIterator[None]:
    """Looks at the file while the block runs, so that the log says soon what is wrong with it."""
    if users_ca is None:
        yield
        return
    async with asyncio.TaskGroup() as tasks:
        watching = tasks.create_task(_watch(users_ca), name="users-ca")
        yield
        watching.cancel()


async def _watch(users_ca: UsersCa) -> None:
    while True:
        _ = users_ca.roots
        await asyncio.sleep(LOOK_EVERY_S)


class UserCertificates:
    """Who calls, by their certificates. Used by one event loop."""

    def __init__(self) -> None:
        self._known: dict[bytes, Caller | ClusterError] = {}
        """By digest."""

    async def identify(self, context: Any) -> Caller:
        """See `callers.Identify`. Of a token that is shown as well nothing is asked."""
        pem = next(iter(context.auth_context().get("x509_pem_cert", ())), b"")
        digest = hashlib.sha256(pem).digest()
        found = self._known.get(digest)
        if found is None:
            found = self._known[digest] = self._look(pem, context.peer())
        if isinstance(found, ClusterError):
            raise ClusterError(found.message, found.code)
        assert found.expires_s is not None, "certificates end"
        over_s = wall_s() - found.expires_s - LEEWAY_S
        if over_s >= 0:
            raise ClusterError(
                f"the certificate of {found.principal} ended {over_s:.0f} s ago, by this broker's "
                "clock: the client needs a new one",
                ErrorCode.CREDENTIALS_EXPIRED,
            )
        return found

    def _look(self, pem: bytes, peer: str) -> Caller | ClusterError:
        found: Caller | ClusterError
        try:
            user = user_of(pem)
        except ClusterError as error:
            _audit.warning("a login failed", host=host_of_peer(peer), reason=error.message)
            found = error
        else:
            # TLS grants no leeway, so the time in which streams and calls have one comes before.
            found = Caller(Role.USER, user.principal, expires_s=user.expires_s - LEEWAY_S)
        if len(self._known) >= KNOWN_MAX:
            del self._known[next(iter(self._known))]
        return found

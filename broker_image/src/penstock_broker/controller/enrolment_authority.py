"""The cluster's CA in a controller, and the controller's own certificate.

    --ca-certificate, --ca-key ─▶ AuthorityFiles ─ signs ─▶ brokers, and
                                                └─ OwnCertificate ─▶ a private folder ─▶ `Tls`

The controller's key never outlives the process: each run has another.
"""

import asyncio
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from penstock.errors import ErrorCode, MisuseError
from penstock.rpc.tls import TlsFiles
from penstock_broker.certificates.authority import Authority, Pair, Subject
from penstock_broker.certificates.enrolment import renewal_of
from penstock_broker.observability import EventLog

_LOOK_EVERY_S: Final = 60.0
_events = EventLog("enrolment")


class AuthorityFiles:
    """The CA as it is in its files now."""

    def __init__(self, certificate: Path, key: Path) -> None:
        self.certificate, self._key = certificate, key

    def load(self) -> Authority:
        """Raises MisuseError, which names the file."""
        return Authority.load(
            Pair(_read(self.certificate, "--ca-certificate"), _read(self._key, "--ca-key"))
        )


class OwnCertificate:
    """In a folder that is removed by `close`. One file has both certificate and key, so that they
    change together."""

    def __init__(
        self,
        authority: AuthorityFiles,
        subject: Subject,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Raises MisuseError."""
        self._authority, self._subject, self._now = authority, subject, now
        self._folder = tempfile.TemporaryDirectory(prefix="penstock-controller-")  # mode 0700
        self._pem = Path(self._folder.name) / "server.pem"
        self._issue()

    @property
    def files(self) -> TlsFiles:
        """What the CA's certificate signs is trusted."""
        return TlsFiles(self._authority.certificate, self._pem, self._pem)

    async def keep(self, every_s: float = _LOOK_EVERY_S) -> None:
        """Renews at two thirds of its life, until cancelled."""
        while True:
            await asyncio.sleep(every_s)
            self.renew_if_due()

    def renew_if_due(self) -> None:
        """Goes on with the former one if the CA cannot be read."""
        try:
            if self._now() >= renewal_of(self._pem.read_bytes()):
                self._issue()
                _events.info("renewed the controller's own certificate")
        except MisuseError as error:
            _events.error("the controller's certificate is not renewed", reason=error.message)

    def close(self) -> None:
        """Idempotent."""
        self._folder.cleanup()

    def _issue(self) -> None:
        pair = self._authority.load().issue(self._subject, now=self._now())
        temporary = self._pem.with_name("new.pem")
        temporary.touch(mode=0o600)
        temporary.write_bytes(pair.certificate + pair.key)
        temporary.replace(self._pem)


def _read(path: Path, option: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise MisuseError(
            f"{option} {path} cannot be read: {error.strerror or error}", ErrorCode.INVALID_CONFIG
        ) from error

"""The cluster's CAs in a controller, and the controller's own certificate.

    --ca-certificate, --ca-key ─▶ Authorities ─ one signs ─▶ brokers, and
    --second-ca                ─▶            └─ OwnCertificate ─▶ a private folder ─▶ `Tls`

The controller's key never outlives the process: each run has another.
"""

import tempfile
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from pathlib import Path

from penstock.errors import ErrorCode, MisuseError
from penstock.rpc.tls import TlsFiles
from penstock_broker.certificates.authority import Authority, Pair, Subject
from penstock_broker.certificates.enrolment import is_superseded, renewal_of
from penstock_broker.certificates.reports import fingerprints
from penstock_broker.certificates.rotation import Slot
from penstock_broker.observability import EventLog

_events = EventLog("enrolment")


class AuthorityFiles:
    """A CA as it is in its files now."""

    def __init__(self, certificate: Path, key: Path, option: str = "") -> None:
        """`option`: which one named them; empty: each its own."""
        self._certificate, self._key = certificate, key
        self._options = (option, option) if option else ("--ca-certificate", "--ca-key")

    def load(self) -> Authority:
        """Raises MisuseError, which names the file."""
        of_certificate, of_key = self._options
        return Authority.load(
            Pair(_read(self._certificate, of_certificate), _read(self._key, of_key))
        )


class Authorities:
    """The CAs of a cluster, of which there are two while one replaces the other.

    One that is relied on is kept in memory: if its Secret is lost, its files go as well, and
    brokers must get certificates until somebody has seen to it.
    """

    def __init__(self, slots: Mapping[Slot, AuthorityFiles]) -> None:
        self._slots = slots
        self._kept: Mapping[Slot, Authority] = {}
        self.unseen: frozenset[Slot] = frozenset()
        """Those in memory alone, when `found` looked."""

    def load(self, slot: Slot) -> Authority:
        """Raises MisuseError, which names the file or the Secret."""
        if slot not in self._slots:
            raise MisuseError(
                f"the CA in Secret …-{slot.value} signs, and --second-ca does not say where it is",
                ErrorCode.INVALID_CONFIG,
            )
        try:
            return self._slots[slot].load()
        except MisuseError:
            if (kept := self._kept.get(slot)) is None:
                raise
            return kept

    def found(self, relied_on: Collection[Slot] = ()) -> Mapping[Slot, Authority]:
        """Those that are there and can be used, and of `relied_on` also those that once were."""
        found, unseen = {}, set()
        for slot, files in self._slots.items():
            try:
                found[slot] = files.load()
            except MisuseError as error:
                if slot in relied_on and slot in self._kept:
                    found[slot] = self._kept[slot]
                    unseen.add(slot)
                    if slot not in self.unseen:
                        _events.error(
                            "the CA is lost, but in memory; restore it before this process ends",
                            secret=f"…-{slot.value}",
                            reason=error.message,
                        )
        self._kept, self.unseen = found, frozenset(unseen)
        return found


def fingerprint_of(authority: Authority) -> str:
    """See `reports`."""
    (found,) = fingerprints(authority.certificate)
    return found


class OwnCertificate:
    """In a folder that is removed by `close`, with the CAs that are trusted. One file has both
    certificate and key, so that they change together."""

    def __init__(
        self,
        subject: Subject,
        signer: Authority,
        trusted: bytes,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """`trusted`: certificates of CAs, PEM. Raises MisuseError."""
        self._subject, self._now = subject, now
        self._folder = tempfile.TemporaryDirectory(prefix="penstock-controller-")  # mode 0700
        folder = Path(self._folder.name)
        self._pem, self._trust = folder / "server.pem", folder / "trust.pem"
        self._trust.write_bytes(trusted)
        self._issue(signer)

    @property
    def files(self) -> TlsFiles:
        """For `Tls`."""
        return TlsFiles(self._trust, self._pem, self._pem)

    def use(self, signer: Authority, trusted: bytes) -> bool:
        """Trusts these, and gets another certificate from `signer` if it is of another CA, or at
        two thirds of its life. Whether a file has changed."""
        changed = self._trust.read_bytes() != trusted
        if changed:
            self._replace(self._trust, trusted)
        leaf = self._pem.read_bytes()
        of_another = is_superseded(leaf, signer.certificate, fingerprint_of(signer))
        if of_another or self._now() >= renewal_of(leaf):
            self._issue(signer)
            _events.info("renewed the controller's own certificate", of_another_ca=of_another)
            return True
        return changed

    def close(self) -> None:
        """Idempotent."""
        self._folder.cleanup()

    def _issue(self, signer: Authority) -> None:
        pair = signer.issue(self._subject, now=self._now())
        self._replace(self._pem, pair.certificate + pair.key)

    def _replace(self, path: Path, content: bytes) -> None:
        temporary = path.with_name("new.pem")
        temporary.touch(mode=0o600)
        temporary.write_bytes(content)
        temporary.replace(path)


def _read(path: Path, option: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise MisuseError(
            f"{option} {path} cannot be read: {error.strerror or error}", ErrorCode.INVALID_CONFIG
        ) from error

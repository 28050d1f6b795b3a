"""What `penstock local up --secure` makes: a CA, certificates, an issuer of tokens, all on disk.

    <root>/security/ca.crt, admin.token     for users: PENSTOCK_CA_FILE, PENSTOCK_TOKEN_FILE
                    users-ca.crt            CA of users who show a certificate
                    ca.key, users-ca.key, issuer.key   whoever reads these may be anybody: mode
                                            0600, as all
                    cluster-id              in the names in certificates
                    token-issuers.json      for brokers
                    <process>.crt, .key     written again at two thirds of their life

Tokens look as those of ServiceAccounts on Kubernetes do: `penstock local token spark` is
"serviceaccount:local/spark". `penstock local certificate ada` makes one of "cert:ada".
"""

import os
import re
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from json import dumps
from pathlib import Path
from typing import Final

import jwt
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm

from penstock.core.types import BrokerId
from penstock.errors import ErrorCode, MisuseError, PenstockError
from penstock_broker.certificates.authority import Authority, Pair, Subject
from penstock_broker.certificates.names import ServerName
from penstock_broker.local.ports import HOST, Ports
from penstock_broker.local.state import FOLDER_MODE, LocalState, StateDirectory, private

ADMIN: Final = "admin"
ADMIN_PRINCIPAL: Final = f"serviceaccount:local/{ADMIN}"
ADMIN_TOKEN_S: Final = 24 * 3600
TOKEN_S_MAX: Final = 365 * 24 * 3600
HOSTS: Final = ("localhost", HOST, "::1")
LOOK_EVERY_S: Final = 60.0
USERS_CA: Final = "users-ca"
CERTIFICATE_DAYS_MAX: Final = 365
_USER: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_RENEW_AFTER: Final = 2 / 3
_KEY_ID: Final = "local"
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def check_mode(directory: StateDirectory, *, secure: bool) -> None:
    """Raises MisuseError if the data here was made the other way: ids and clients depend on it."""
    was_secure = directory.security.is_dir()
    has_data = was_secure or directory.data("controller").is_dir()
    if has_data and was_secure != secure:
        made, now = ("with", "without") if was_secure else ("without", "with")
        again = "give --secure" if was_secure else "leave --secure out"
        raise MisuseError(
            f"the cluster in {directory.root} was made {made} --secure and cannot go on {now} it: "
            f"{again}, choose another directory with --data-dir, or remove all records with "
            "`penstock local down --purge`",
            ErrorCode.INVALID_CONFIG,
        )


class LocalSecurity:
    """Of one cluster; makes what is missing."""

    def __init__(self, directory: StateDirectory, cluster: str) -> None:
        self.folder = directory.security
        self.audience = f"penstock.local.{cluster}"
        self.ca_file = self.folder / "ca.crt"
        self.admin_token_file = self.folder / "admin.token"
        self.issuers_file = self.folder / "token-issuers.json"
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._processes: list[str] = []

    def prepare(self, processes: list[str]) -> None:
        """All files, for processes of these names ("controller", "broker-0")."""
        self._processes = processes
        self.folder.mkdir(FOLDER_MODE, exist_ok=True)
        self._make_once()
        self._publish()
        self.renew()

    @property
    def cluster_id(self) -> str:
        return (self.folder / "cluster-id").read_text().strip()

    def options(self, process: str, ports: Ports) -> list[str]:
        """On the command line of one process."""
        shown = [
            f"--tls-ca={self.ca_file}",
            f"--tls-certificate={self.folder / process}.crt",
            f"--tls-key={self.folder / process}.key",
            f"--health-listen={HOST}:{ports.health}",
        ]
        if process == "controller":
            return [*shown, f"--cluster-id={self.cluster_id}"]
        return [
            *shown,
            f"--internal-listen={HOST}:0",
            f"--token-issuers={self.issuers_file}",
            f"--certificate-listen={HOST}:{ports.certificate}",
            f"--users-ca={self.folder / USERS_CA}.crt",
        ]

    def token(self, name: str, seconds: float) -> str:
        """A token of "serviceaccount:local/<name>". Raises MisuseError."""
        check_token(name, seconds)
        now_s = int(time.time_ns() // 1_000_000_000)
        claims = {
            "iss": self._issuer,
            "aud": [self.audience],
            "sub": f"system:serviceaccount:local:{name}",
            "iat": now_s,
            "nbf": now_s,
            "exp": now_s + int(seconds),
            "jti": str(uuid.uuid4()),
            "kubernetes.io": {"namespace": "local", "serviceaccount": {"name": name, "uid": name}},
        }
        return jwt.encode(claims, self._issuer_key, "ES256", headers={"kid": _KEY_ID})

    def certificate(self, name: str, days: int) -> Pair:
        """A certificate of "cert:<name>", with its key. Raises MisuseError."""
        check_user(name)
        if not 1 <= days <= CERTIFICATE_DAYS_MAX:
            raise MisuseError(
                f"a certificate for {days} days cannot be made; choose 1 to {CERTIFICATE_DAYS_MAX}",
                ErrorCode.INVALID_REQUEST,
            )
        shown, key = (self.folder / f"{USERS_CA}.{suffix}" for suffix in ("crt", "key"))
        users = Authority.load(Pair(shown.read_bytes(), key.read_bytes()))
        return users.issue(Subject(common_name=name), days=days)

    def renew(self) -> None:
        """Certificates and the admin's token that have lived for two thirds of their time."""
        for process in self._processes:
            if _is_due(self.folder / f"{process}.crt"):
                uri = ServerName(self.cluster_id, _broker_id(process)).uri
                subject = Subject(common_name=process, uri=uri, hosts=HOSTS)
                pair = self._authority.issue(subject)
                _write(self.folder / f"{process}.key", pair.key)
                _write(self.folder / f"{process}.crt", pair.certificate)
        token = self.admin_token_file
        if not token.exists() or time.time_ns() / 1e9 - token.stat().st_mtime > (
            ADMIN_TOKEN_S * _RENEW_AFTER
        ):
            _write(token, self.token(ADMIN, ADMIN_TOKEN_S).encode())

    def start_renewing(self, tell: Callable[[str], None]) -> None:
        """In a thread, until `stop_renewing`. `tell`: of what failed, and is tried again."""
        self._stopping.clear()
        self._thread = threading.Thread(
            target=self._keep, args=(tell,), name="renew-certificates", daemon=True
        )
        self._thread.start()

    def stop_renewing(self) -> None:
        """Idempotent."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _keep(self, tell: Callable[[str], None]) -> None:
        while not self._stopping.wait(LOOK_EVERY_S):
            try:
                self.renew()
            except (PenstockError, OSError) as error:
                tell(f"certificates could not be renewed: {error}; it is tried again")

    # ------------------------------------------------------------ files

    def _make_once(self) -> None:
        if not (self.folder / "ca.key").exists():
            authority = Authority.new("penstock local").pair
            _write(self.ca_file, authority.certificate)
            _write(self.folder / "ca.key", authority.key)
        if not (self.folder / f"{USERS_CA}.key").exists():
            users = Authority.new("users of penstock local").pair
            _write(self.folder / f"{USERS_CA}.crt", users.certificate)
            _write(self.folder / f"{USERS_CA}.key", users.key)
        if not (self.folder / "issuer.key").exists():
            pem = ec.generate_private_key(ec.SECP256R1()).private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
            _write(self.folder / "issuer.key", pem)
        if not (self.folder / "cluster-id").exists():
            _write(self.folder / "cluster-id", str(uuid.uuid4()).encode())

    def _publish(self) -> None:
        public = ECAlgorithm.to_jwk(self._issuer_key.public_key(), as_dict=True)
        key = {**public, "kid": _KEY_ID, "use": "sig", "alg": "ES256"}
        issuer = {
            "issuer": self._issuer,
            "audience": self.audience,
            "kind": "kubernetes",
            "jwks": {"keys": [key]},
        }
        _write(self.issuers_file, dumps({"issuers": [issuer]}, indent=2).encode())

    @property
    def _issuer(self) -> str:
        return f"https://penstock.local/{self.cluster_id}"

    @property
    def _issuer_key(self) -> ec.EllipticCurvePrivateKey:
        try:
            pem = (self.folder / "issuer.key").read_bytes()
        except OSError as error:
            raise MisuseError(
                f"{self.folder}: {error.strerror}; was this cluster started with --secure?",
                ErrorCode.INVALID_CONFIG,
            ) from None
        key = serialization.load_pem_private_key(pem, password=None)
        assert isinstance(key, ec.EllipticCurvePrivateKey), "made here"
        return key

    @property
    def _authority(self) -> Authority:
        pair = Pair(self.ca_file.read_bytes(), (self.folder / "ca.key").read_bytes())
        return Authority.load(pair)


def check_token(name: str, seconds: float) -> None:
    """Whose a token may be, and how long it may count. Raises MisuseError."""
    if not _NAME.fullmatch(name):
        raise MisuseError(
            f"{name!r} cannot be a name: 1 to 63 lower-case letters, digits and '-'",
            ErrorCode.INVALID_REQUEST,
        )
    if not 1 <= seconds <= TOKEN_S_MAX:
        raise MisuseError(
            f"a token for {seconds:g} s cannot be made; choose 1s to 365d",
            ErrorCode.INVALID_REQUEST,
        )


def check_user(name: str) -> None:
    """Whose a certificate may be. Raises MisuseError."""
    if not _USER.fullmatch(name):
        raise MisuseError(
            f"{name!r} cannot be a user's name here: 1 to 64 letters, digits and . _ @ -, a "
            "letter or digit first",
            ErrorCode.INVALID_REQUEST,
        )


def token_of(root: Path, name: str, seconds: float) -> str:
    """A token for the cluster in this directory. Raises MisuseError unless it is a secure one."""
    directory, state = _secure(root, "tokens")
    return LocalSecurity(directory, state.cluster).token(name, seconds)


@dataclass(frozen=True, slots=True)
class Certified:
    """A user's certificate, in files that only their owner reads. `bootstrap`: where it counts."""

    principal: str
    ends: datetime
    certificate_file: Path
    key_file: Path
    ca_file: Path
    bootstrap: str


def write_certificate(root: Path, name: str, days: int, folder: Path) -> Certified:
    """Makes <name>.crt and <name>.key in `folder`. Raises MisuseError unless it is secure."""
    directory, state = _secure(root, "certificates")
    if not state.certificate_bootstrap:
        raise MisuseError(
            f"the cluster in {root} was started by a release that takes no certificates: stop it "
            "with `penstock local down`, and start it again",
            ErrorCode.INVALID_REQUEST,
        )
    pair = LocalSecurity(directory, state.cluster).certificate(name, days)
    shown, key = folder / f"{name}.crt", folder / f"{name}.key"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _write(key, pair.key)
        _write(shown, pair.certificate)
    except OSError as error:
        raise MisuseError(f"{folder}: cannot be written to: {error.strerror}") from error
    ends = x509.load_pem_x509_certificate(pair.certificate).not_valid_after_utc
    ca_file = directory.security / "ca.crt"
    return Certified(f"cert:{name}", ends, shown, key, ca_file, state.certificate_bootstrap)


def _secure(root: Path, what: str) -> tuple[StateDirectory, LocalState]:
    directory = StateDirectory(root)
    state = directory.read()
    if state is None or not directory.security.is_dir():
        raise MisuseError(
            f"no cluster with --secure runs in {root}: without it there are no {what}",
            ErrorCode.INVALID_REQUEST,
        )
    return directory, state


def write_token(path: Path, token: str) -> None:
    """Readable by its owner alone; replaced atomically, for clients that look at it."""
    _write(path, token.encode())


def _broker_id(process: str) -> BrokerId | None:
    return None if process == "controller" else BrokerId(int(process.removeprefix("broker-")))


def _is_due(path: Path) -> bool:
    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError):
        return True
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    life: timedelta = ends - begins
    return datetime.now(UTC) >= begins + _RENEW_AFTER * life


def _write(path: Path, content: bytes) -> None:
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb", opener=private) as file:
            file.write(content)
        temporary.replace(path)
    except BaseException:  # it may be a token
        temporary.unlink(missing_ok=True)
        raise

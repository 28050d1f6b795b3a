"""What a client trusts and what it shows: a CA, a token, perhaps a certificate.

    settings ─▶ environment ─▶ /var/run/secrets/penstock.dev/ ─▶ Credentials
    token file, rewritten ─▶ the next call shows it; streams are opened again (`is_outdated`)
    refused (90, 92) ─▶ the file is read at once; has it another token, the call is made once more

A token is sent over TLS only. How long it counts can be read in it if it is a JSON web token; what
it says is not believed here, it only tells when to look for the next one.
"""

import base64
import json
import logging
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from time import monotonic, time_ns
from typing import Final, TypeAlias

from penstock.client.config import SecurityConfig
from penstock.errors import ClusterError, ErrorCode, MisuseError, PenstockError
from penstock.rpc.tls import Tls, TlsFiles

MOUNT: Final = Path("/var/run/secrets/penstock.dev")
"""Where a pod finds `ca.crt` and `token` without any setting."""
VARIABLES: Final[Mapping[str, str]] = {
    "ca_file": "PENSTOCK_CA_FILE",
    "token_file": "PENSTOCK_TOKEN_FILE",
    "certificate_file": "PENSTOCK_CERTIFICATE_FILE",
    "key_file": "PENSTOCK_KEY_FILE",
}
LOOK_EVERY_S: Final = 2.0
TOKEN_BYTES_MAX: Final = 7 * 1024
"""Brokers refuse longer ones."""
RENEW_AFTER: Final = 0.8
"""The part of a token's life after which streams are opened again, with the next one. A kubelet
writes it at that time."""
_REFUSED: Final = frozenset({ErrorCode.UNAUTHENTICATED, ErrorCode.CREDENTIALS_EXPIRED})

_log = logging.getLogger("penstock.client")

Metadata: TypeAlias = tuple[tuple[str, str], ...] | None


def joined(shown: Metadata, more: Metadata) -> Metadata:
    """The metadata of one call."""
    return shown if more is None else (*(shown or ()), *more)


@dataclass(frozen=True, slots=True)
class Token:
    """A token, and from when on (seconds since 1970) a newer one should be shown; 0: always."""

    text: str = field(repr=False)
    renew_at_s: float

    @property
    def metadata(self) -> Metadata:
        return (("authorization", f"Bearer {self.text}"),)


class TokenFile:
    """Read again when it changes. Used by one thread."""

    def __init__(self, path: Path) -> None:
        """Raises MisuseError if there is no token in it."""
        self._path = path
        self._looked_s = monotonic()
        self._seen = _look(path)
        self._token = _read(path)
        self._metadata = self._token.metadata

    def current(self) -> Token:
        """The newest token that could be read."""
        if monotonic() - self._looked_s >= LOOK_EVERY_S:
            self.look_now()
        return self._token

    def metadata(self) -> Metadata:
        """Of a call with that token."""
        self.current()
        return self._metadata

    def look_now(self) -> None:
        """However short the last look is ago. A file that cannot be read leaves the former token:
        perhaps it is being written."""
        self._looked_s = monotonic()
        seen = _look(self._path)
        if seen == self._seen:
            return
        try:
            self._token = _read(self._path)
        except MisuseError:
            return
        self._seen = seen
        self._metadata = self._token.metadata


@dataclass(frozen=True, slots=True)
class Shown:
    """What a stream or a channel was opened with."""

    token: Token | None
    generation: int

    @property
    def metadata(self) -> Metadata:
        """For the call that opens the stream."""
        return None if self.token is None else self.token.metadata


NOTHING: Final = Shown(None, 0)


class Credentials:
    """Of one client, used by its event loop alone. `tls` None: plaintext, and nothing is shown."""

    def __init__(self, tls: Tls | None = None, token_file: TokenFile | None = None) -> None:
        self.tls = tls
        self._token_file = token_file

    def metadata(self) -> Metadata:
        """Of every unary call."""
        return None if self._token_file is None else self._token_file.metadata()

    def shown(self) -> Shown:
        """What a stream that is opened now shows."""
        token = None if self._token_file is None else self._token_file.current()
        return Shown(token, self.generation)

    @property
    def generation(self) -> int:
        """Moves when channels must be opened again, to use other files."""
        return 0 if self.tls is None else self.tls.generation

    def is_outdated(self, shown: Shown) -> bool:
        """Whether a stream that was opened with this should be opened again, with what is newer."""
        if self.tls is None:
            return False
        if shown.generation != self.tls.generation:
            return True
        if self._token_file is None or shown.token is None:
            return False
        newer = self._token_file.current().text != shown.token.text
        return newer and time_ns() / 1e9 >= shown.token.renew_at_s

    def has_newer(self, error: PenstockError, shown: Metadata) -> bool:
        """Whether a call that was refused with `error` may be made again, with another token."""
        if self._token_file is None or error.code not in _REFUSED:
            return False
        self._token_file.look_now()
        return self._token_file.metadata() != shown

    def judged(self, error: PenstockError, shown: Shown) -> PenstockError:
        """The error that a stream ended with; one that is retriable if there is a newer token."""
        if error.code is ErrorCode.UNAUTHENTICATED and self.has_newer(error, shown.metadata):
            return ClusterError(error.message, ErrorCode.CREDENTIALS_EXPIRED)
        return error


def credentials_of(config: SecurityConfig) -> Credentials:
    """Raises MisuseError, which names the file, for what cannot be used."""
    ca = _chosen(config.ca_file, "ca_file", MOUNT / "ca.crt")
    if ca is None:
        _refuse_plaintext(config)
        return Credentials()
    certificate = _chosen(config.certificate_file, "certificate_file")
    key = _chosen(config.key_file, "key_file")
    token = _chosen(config.token_file, "token_file", MOUNT / "token")
    if (certificate is None) != (key is None):
        raise MisuseError(
            f"certificate_file ({VARIABLES['certificate_file']}) and key_file "
            f"({VARIABLES['key_file']}) go together; give both or none",
            ErrorCode.INVALID_CONFIG,
        )
    tls = Tls(TlsFiles(ca, certificate, key))
    if key is not None:
        _warn_if_open(key)
    return Credentials(tls, None if token is None else TokenFile(token))


@lru_cache(maxsize=64)
def _warn_if_open(key: Path) -> None:
    """Once in a process: whoever reads a key is its owner to everybody else."""
    try:
        mode = stat.S_IMODE(key.stat().st_mode)
    except OSError:
        return
    if mode & stat.S_IROTH:
        _log.warning(
            "the key file %s can be read by all users of this machine (mode %o): set 0600",
            key,
            mode,
        )


def _refuse_plaintext(config: SecurityConfig) -> None:
    """Raises MisuseError for what would be sent in plaintext, or silently left out."""
    for name in ("token_file", "certificate_file"):
        from_environment = config.ca_file is None and os.environ.get(VARIABLES[name])
        if getattr(config, name) or (getattr(config, name) is None and from_environment):
            raise MisuseError(
                f"{name} ({VARIABLES[name]}) is used over TLS only: give ca_file "
                f"({VARIABLES['ca_file']}) as well, the CA certificate of the cluster",
                ErrorCode.INVALID_CONFIG,
            )


def _chosen(given: str | Path | None, name: str, mounted: Path | None = None) -> Path | None:
    """A setting, else the environment, else the mount; "" as a setting: none."""
    if given is not None:
        return Path(given) if given != "" else None
    from_environment = os.environ.get(VARIABLES[name])
    if from_environment:
        return Path(from_environment)
    return mounted if mounted is not None and mounted.exists() else None


def _look(path: Path) -> tuple[int, int, int]:
    try:
        stat = path.stat()
    except OSError:
        return (0, 0, 0)
    return (stat.st_mtime_ns, stat.st_size, stat.st_ino)


def _read(path: Path) -> Token:
    """Raises MisuseError, which never repeats the content."""
    try:
        with path.open("rb") as file:
            content = file.read(TOKEN_BYTES_MAX + 2)
    except OSError as error:
        raise MisuseError(
            f"the token file {path} cannot be read: {error.strerror}", ErrorCode.INVALID_CONFIG
        ) from None
    text = content.strip().decode("ascii", "replace")
    if not text or len(text) > TOKEN_BYTES_MAX or not text.isprintable() or " " in text:
        raise MisuseError(
            f"the token file {path} must hold one token of at most {TOKEN_BYTES_MAX} characters, "
            f"and nothing else; it has {len(content)} bytes or more",
            ErrorCode.INVALID_CONFIG,
        )
    return Token(text, _renew_at_s(text))


def _renew_at_s(text: str) -> float:
    """0 for a token whose life cannot be read in it."""
    try:
        payload = text.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        expires_s = float(claims["exp"])
        issued_s = float(claims.get("iat", time_ns() / 1e9))
    except (IndexError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return 0.0
    return issued_s + RENEW_AFTER * (expires_s - issued_s)

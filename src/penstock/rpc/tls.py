"""TLS of one process: its files, read again when they change, for gRPC and for message streams.

    files ─ changed, and whole ─▶ generation + 1 ─▶ new connections use them
       └─── changed, and unusable ─▶ logged by the owner (`problem`), the former ones stay

A server uses new files from the next connection on. A gRPC channel cannot: it must be opened again,
which whoever keeps channels does when `generation` has moved (grpc/grpc#41779).
"""

import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from time import monotonic
from typing import Final

import grpc

from penstock.errors import ErrorCode, MisuseError

LOOK_EVERY_S: Final = 10.0
"""How often files are looked at."""
_MINIMUM: Final = ssl.TLSVersion.TLSv1_2
_READS_MAX: Final = 5
_Look = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Paths of PEM files. A server needs all three; a client needs `ca`, and shows a certificate if
    it has one."""

    ca: Path
    certificate: Path | None = None
    key: Path | None = None

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise MisuseError(
                "a certificate and its key go together; give both or none",
                ErrorCode.INVALID_CONFIG,
            )


@dataclass(frozen=True, slots=True)
class _Loaded:
    """What was read from the files at one time, and proved to be usable. `pair`: key, chain.
    `servers`: contexts by whether they ask clients for a certificate."""

    roots: bytes
    pair: tuple[bytes, bytes] | None
    client: ssl.SSLContext
    servers: Mapping[bool, ssl.SSLContext]


class Tls:
    """The TLS of this process. Used from any thread."""

    def __init__(self, files: TlsFiles) -> None:
        """Raises MisuseError, which names the file, when they cannot be used."""
        self.files = files
        self._seen, self._loaded = _read(files)
        self._generation = 1
        self._looked_s = monotonic()
        self.problem = ""
        """Why the newest files are not in use; empty: they are."""

    @property
    def generation(self) -> int:
        """Moves when other files are in use. Looks at them, but not more often than
        `LOOK_EVERY_S`."""
        self._refresh()
        return self._generation

    @property
    def certificates(self) -> tuple[bytes, bytes]:
        """What is in use, as PEM: the trusted CAs; the own certificate and its chain, b"" if there
        is none."""
        loaded = self._refresh()
        return loaded.roots, loaded.pair[1] if loaded.pair else b""

    def look_now(self) -> None:
        """Looks at the files at the next use, however short the last look is ago."""
        self._looked_s = -LOOK_EVERY_S

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """For channels, which keep what is in the files now."""
        loaded = self._refresh()
        key, chain = loaded.pair or (None, None)
        return grpc.ssl_channel_credentials(loaded.roots, key, chain)

    def server_credentials(
        self, *, ask_clients: bool, authorities: Callable[[], bytes] | None = None
    ) -> grpc.ServerCredentials:
        """For one port of a server, which uses the newest files for each connection.

        `ask_clients`: only clients with a certificate of the CA get in; with `authorities`, of one
        of these CAs (PEM) instead. That is called from any thread.
        """

        def newest() -> tuple[_Loaded, bytes]:
            loaded = self._refresh()
            return loaded, loaded.roots if authorities is None else authorities()

        used = newest()
        lock = Lock()

        def changed() -> grpc.ServerCertificateConfiguration | None:
            # gRPC calls it for every connection, on several threads, and replaces what handshakes
            # under way refer to: given a configuration each time, it crashes under many of them.
            nonlocal used
            found = newest()
            with lock:
                if found == used:
                    return None
                used = found
            return _configuration(*found, ask_clients=ask_clients)

        return grpc.dynamic_ssl_server_credentials(
            _configuration(*used, ask_clients=ask_clients),
            changed,  # type: ignore[arg-type]  # None: unchanged; its stubs do not say so
            require_client_authentication=ask_clients,
        )

    def client_context(self) -> ssl.SSLContext:
        """For a connection of a message stream. Shared: do not change it."""
        return self._refresh().client

    def server_context(self, *, ask_clients: bool) -> ssl.SSLContext:
        """For accepting a message stream. Shared: do not change it."""
        return self._refresh().servers[ask_clients]

    def _refresh(self) -> _Loaded:
        if monotonic() - self._looked_s < LOOK_EVERY_S:
            return self._loaded
        self._looked_s = monotonic()
        if _look(self.files) == self._seen:
            return self._loaded
        try:
            self._seen, self._loaded = _read(self.files)
        except MisuseError as error:
            self.problem = error.message  # perhaps half of them is written: looked at again
            return self._loaded
        self.problem = ""
        self._generation += 1
        return self._loaded


def generation_of(tls: Tls | None) -> int:
    """`Tls.generation`; 0 without TLS."""
    return 0 if tls is None else tls.generation


def _configuration(
    loaded: _Loaded, authorities: bytes, *, ask_clients: bool
) -> grpc.ServerCertificateConfiguration:
    assert loaded.pair is not None, "a server has a certificate"
    roots = authorities if ask_clients else None
    return grpc.ssl_server_certificate_configuration([loaded.pair], roots)


def _paths(files: TlsFiles) -> tuple[Path, ...]:
    return tuple(path for path in (files.ca, files.certificate, files.key) if path is not None)


def _look(files: TlsFiles) -> _Look:
    """What tells one state of the files from another, without reading them."""
    found = []
    for path in _paths(files):
        try:
            stat = path.stat()
        except OSError:
            found.append((0, 0, 0))
        else:
            found.append((stat.st_mtime_ns, stat.st_size, stat.st_ino))
    return tuple(found)


def _read(files: TlsFiles) -> tuple[_Look, _Loaded]:
    """What was there all the while: a key and a certificate of two generations do not fit.

    Raises MisuseError.
    """
    for _ in range(_READS_MAX):
        seen = _look(files)
        loaded = _load(files)
        if _look(files) == seen:
            return seen, loaded
    raise MisuseError(
        f"{files.ca} and the files beside it changed {_READS_MAX} times while they were read; let "
        "whoever writes them come to an end",
        ErrorCode.INVALID_CONFIG,
    )


def _load(files: TlsFiles) -> _Loaded:
    """Contexts read the files themselves: made now, which proves that they can be used, and not
    when half of the next ones may be there."""
    client = _context(files, ssl.PROTOCOL_TLS_CLIENT, ask_clients=False)
    asking = () if files.key is None else (False, True)
    servers = {ask: _context(files, ssl.PROTOCOL_TLS_SERVER, ask_clients=ask) for ask in asking}
    read = {path: _bytes_of(path) for path in _paths(files)}
    if files.certificate is None or files.key is None:
        return _Loaded(read[files.ca], None, client, servers)
    return _Loaded(read[files.ca], (read[files.key], read[files.certificate]), client, servers)


def _bytes_of(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise MisuseError(
            f"{path} cannot be read: {error.strerror}", ErrorCode.INVALID_CONFIG
        ) from error


def _context(files: TlsFiles, protocol: int, *, ask_clients: bool) -> ssl.SSLContext:
    """Raises MisuseError."""
    context = ssl.SSLContext(protocol)
    context.minimum_version = _MINIMUM
    if ask_clients:
        context.verify_mode = ssl.CERT_REQUIRED
    path = files.ca
    try:
        context.load_verify_locations(path)
        if files.certificate is not None and files.key is not None:
            path = files.certificate
            context.load_cert_chain(files.certificate, files.key)
    except (OSError, ssl.SSLError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise MisuseError(
            f"{path} cannot be used for TLS: {reason}; it must be a readable PEM file"
            + ("" if path is files.ca else f" that fits the key {files.key}"),
            ErrorCode.INVALID_CONFIG,
        ) from error
    return context

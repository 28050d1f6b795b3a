"""Issuers of people's tokens (OpenID Connect): their keys are fetched by controllers alone.

    --oidc-issuers ─▶ <issuer>/.well-known/openid-configuration ─▶ jwks_uri ─▶ keys ─▶ document

An issuer that does not answer keeps its last keys, also when controllers restart meanwhile: brokers
have them. One that never did has none, and says AUTH_NOT_READY to its users alone. Whatever an
issuer answers, the others and the API server's keys go on: what cannot be used is left out. Source:
OpenID Connect Discovery 1.0, sections 4.2 and 4.3.
"""

import asyncio
import http.client
import ipaddress
import json
import socket
import ssl
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from threading import Timer
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

from penstock.errors import ClusterError, ErrorCode, MisuseError
from penstock_broker.controller.enrolment_issuers import (
    APART_S,
    EVERY_S,
    IssuersSource,
    PublishedIssuers,
)
from penstock_broker.observability import EventLog
from penstock_broker.serving.tokens.issuers import parse_issuers

VARIABLE: Final = "PENSTOCK_OIDC_ISSUERS"
ISSUERS_MAX: Final = 8
CONFIGURATION: Final = "/.well-known/openid-configuration"
CONFIGURATION_BYTES_MAX: Final = 64 * 1024
KEYS_BYTES_MAX: Final = 64 * 1024
TIMEOUT_S: Final = 5.0
"""Of connecting, and of each wait for a byte; an answer may take twice as long."""
WAIT_S: Final = 3.0
"""For an issuer that is asked because a broker wants newer keys. The broker itself gives up after
10 s, and with them the API server's keys."""
_FIELDS: Final = frozenset({"issuer", "audience", "usernameClaim", "groupsClaim"})
_events = EventLog("oidc")
Entry = Mapping[str, Any]
"""Of the document of issuers, without its keys."""


def parse_oidc(text: str) -> list[Entry]:
    """The option: a JSON list of objects, as `spec.security.oidc` has them. "": none.

    Raises MisuseError.
    """
    try:
        given = json.loads(text or "[]")
    except (ValueError, RecursionError) as error:
        raise _wrong(f"is not JSON: {error}") from None
    if not isinstance(given, list) or not all(isinstance(one, dict) for one in given):
        raise _wrong("must be a JSON list of objects")
    if len(given) > ISSUERS_MAX:
        raise _wrong(f"has {len(given)} issuers; at most {ISSUERS_MAX}")
    entries: list[Entry] = []
    for one in given:
        if unknown := one.keys() - _FIELDS:
            raise _wrong(
                f"has {', '.join(sorted(unknown))}; known are {', '.join(sorted(_FIELDS))}"
            )
        entries.append({**one, "kind": "oidc"})
    try:
        parse_issuers(_document([_with_keys(one, {"keys": []}) for one in entries]))
        for one in entries:
            _check_address(one["issuer"], plaintext=True)
    except (MisuseError, ClusterError) as error:
        raise _wrong(f"cannot be used: {error.message}") from None
    return entries


def fetch_entry(entry: Entry) -> bytes:
    """The entry with the issuer's keys, JSON. Blocks.

    Raises ClusterError, which says what is wrong with the issuer's answers.
    """
    issuer: str = entry["issuer"]
    plaintext = urlsplit(issuer).scheme == "http"
    found = _object(issuer.rstrip("/") + CONFIGURATION, CONFIGURATION_BYTES_MAX, plaintext)
    if found.get("issuer") != issuer:
        raise _unusable(f"{issuer} says that it is issuer {str(found.get('issuer'))[:200]!r}")
    address = found.get("jwks_uri")
    if not isinstance(address, str):
        raise _unusable(f"{issuer} does not say where its keys are (jwks_uri)")
    whole = _with_keys(entry, _object(address, KEYS_BYTES_MAX, plaintext))
    try:
        (parsed,) = parse_issuers(_document([whole])).values()
    except MisuseError as error:
        raise _unusable(f"the keys at {address[:200]} cannot be used: {error.message}") from None
    if not parsed.keys:
        raise _unusable(f"{address[:200]} has no key for RS256 or ES256")
    return json.dumps(whole, sort_keys=True).encode()


class OidcSource:
    """One issuer, which `run` alone asks, so that nobody else has to wait for it."""

    def __init__(self, entry: Entry, published: PublishedIssuers) -> None:
        self.entry = entry
        self._published = published
        self._wanted = asyncio.Event()
        self._looked = asyncio.Event()

    @property
    def whole(self) -> dict[str, Any]:
        """The entry with its keys; none before the issuer has answered, and then brokers keep
        those that they have (`certificates.last_keys`)."""
        known = self._published.known
        return json.loads(known) if known else _with_keys(self.entry, {"keys": []})

    async def look_again(self) -> None:
        """Has it asked, unless the last time is too recent; waits for at most `WAIT_S`."""
        self._looked.clear()
        self._wanted.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(WAIT_S):
                await self._looked.wait()

    async def run(self) -> None:
        """Asks every five minutes, and when somebody wants it; until cancelled."""
        while True:
            self._wanted.clear()  # whoever wants it from here on is answered by the next turn
            await self._published.look()
            self._looked.set()
            with suppress(TimeoutError):
                async with asyncio.timeout(EVERY_S if self._published.known else APART_S):
                    await self._wanted.wait()


class AllIssuers:
    """One document of the API server's keys, or a file's, and those of OIDC issuers."""

    def __init__(self, first: IssuersSource, oidc: Sequence[OidcSource]) -> None:
        self._first = first
        self._oidc = oidc
        self._left_out: set[str] = set()

    @property
    def unavailable_s(self) -> float:
        """See the seam."""
        return self._first.unavailable_s

    async def document(self) -> bytes:
        """See the seam. Does not wait for OIDC issuers."""
        return self._joined(await self._first.document())

    async def look_again(self) -> bytes:
        """See the seam: each issuer has its own 30 s."""
        async with asyncio.TaskGroup() as group:
            first = group.create_task(self._first.look_again())
            for source in self._oidc:
                group.create_task(source.look_again())
        return self._joined(first.result())

    async def run(self) -> None:
        """See the seam."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._first.run())
            for source in self._oidc:
                group.create_task(source.run())

    def _joined(self, first: bytes) -> bytes:
        """An issuer that would make the document unusable is left out, and the log says so."""
        try:
            parse_issuers(first)
        except MisuseError:
            return first  # brokers say what is wrong with it, and keep the last one
        entries = list(json.loads(first)["issuers"])
        for source in self._oidc:
            whole, issuer = source.whole, source.entry["issuer"]
            try:
                parse_issuers(_document([*entries, whole]))
            except MisuseError as error:
                if issuer not in self._left_out:
                    self._left_out.add(issuer)
                    _events.error("an issuer is left out", issuer=issuer, reason=error.message)
            else:
                entries.append(whole)
        return _document(entries)


@contextmanager
def with_oidc(first: IssuersSource, text: str) -> Iterator[IssuersSource]:
    """`first`, and the issuers of the option. Raises MisuseError."""
    entries = parse_oidc(text)
    if not entries:
        yield first
        return
    # A thread for each: one that is slow holds up nobody else.
    executor = ThreadPoolExecutor(len(entries), "oidc")
    try:
        yield AllIssuers(first, [OidcSource(one, _published(one, executor)) for one in entries])
    finally:
        executor.shutdown(wait=False, cancel_futures=True)


def _published(entry: Entry, executor: ThreadPoolExecutor) -> PublishedIssuers:
    return PublishedIssuers(
        lambda: fetch_entry(entry), executor, whose=entry["issuer"], apart_at_first_s=APART_S
    )


def _object(address: str, bytes_max: int, plaintext: bool) -> dict[str, Any]:
    """What is at an address. Raises ClusterError."""
    _check_address(address, plaintext=plaintext)
    try:
        found = json.loads(_get(address, bytes_max))
    except (OSError, http.client.HTTPException, ValueError, RecursionError) as error:
        raise _unusable(
            f"{address[:200]} cannot be read: {error or type(error).__name__}"
        ) from None
    if not isinstance(found, dict):
        raise _unusable(f"{address[:200]} is not a JSON object")
    return found


def _get(address: str, bytes_max: int) -> bytes:
    """Follows no redirect: who controls a page of the issuer's would choose whose keys count."""
    parts, content = urlsplit(address), bytearray()
    with _connected(parts) as connection:
        connection.request("GET", parts.path + (f"?{parts.query}" if parts.query else ""))
        with connection.getresponse() as response:
            if response.status != http.HTTPStatus.OK:
                raise _unusable(
                    f"{address[:200]} answers {response.status}; redirects are not followed"
                )
            while chunk := response.read1(bytes_max + 1):
                content += chunk
                if len(content) > bytes_max:
                    raise _unusable(f"{address[:200]} has more than {bytes_max} bytes")
    return bytes(content)


@contextmanager
def _connected(parts: SplitResult) -> Iterator[http.client.HTTPConnection]:
    """For `2 * TIMEOUT_S`, then it is cut.

    A timeout of the socket would begin again with each byte, also of a header.
    """
    host, secure = parts.hostname or "", parts.scheme == "https"
    raw = socket.create_connection((host, parts.port or (443 if secure else 80)), TIMEOUT_S)
    with raw, raw.dup() as same:
        cut = Timer(2 * TIMEOUT_S, _cut, [same])
        cut.daemon = True
        cut.start()
        try:
            if secure:
                connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                    host, parts.port
                )
                context = ssl.create_default_context()
                connection.sock = context.wrap_socket(raw, server_hostname=host)
            else:
                connection = http.client.HTTPConnection(host, parts.port)
                connection.sock = raw
            with closing(connection):
                yield connection
        finally:
            cut.cancel()
            cut.join()


def _cut(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _check_address(address: str, *, plaintext: bool) -> None:
    """Raises ClusterError unless it is https, or, if `plaintext` may be, http on loopback."""
    try:
        parts = urlsplit(address)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        host, parts = "", urlsplit("")
    secure = parts.scheme == "https" or (plaintext and parts.scheme == "http" and _loopback(host))
    clean = address.isascii() and address.isprintable() and " " not in address
    if not host or not secure or not clean or parts.username or parts.fragment:
        raise _unusable(f"{address[:200]!r} is not an https address")


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _with_keys(entry: Entry, jwks: object) -> dict[str, Any]:
    return {**entry, "jwks": jwks}


def _document(entries: Sequence[Entry]) -> bytes:
    return json.dumps({"issuers": entries}, sort_keys=True).encode()


def _unusable(what: str) -> ClusterError:
    return ClusterError(what, ErrorCode.UNREACHABLE)


def _wrong(what: str) -> MisuseError:
    return MisuseError(f"--oidc-issuers {what}", ErrorCode.INVALID_CONFIG)

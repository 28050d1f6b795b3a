"""Why no broker at an address answers: whether the other side expects TLS, has none, or is no
broker at all.

gRPC says "Socket closed" or "handshake failed" for all of it, and tries again until the caller's
timeout. One more connection, made here, tells what is wrong. A gRPC server that does not accept a
client's certificate ends the connection without a word once the client has shaken hands; any other
begins to speak HTTP/2, and what begins with anything else is no gRPC server.
"""

import asyncio
import socket
import ssl
from contextlib import suppress
from typing import Final

from penstock.errors import MisuseError, UnreachableError
from penstock.rpc.tls import Tls

DIAGNOSIS_S: Final = 2.0
_ALERT_S: Final = 0.3
"""How long a server takes to refuse a client without a certificate, once it is connected."""
_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""What a client of HTTP/2 sends first, with an empty SETTINGS frame (RFC 9113, 3.4)."""
_FRAME_HEADER_BYTES: Final = 9
_SETTINGS: Final = 4
"""The type of the frame that a server of HTTP/2 sends first; it is the frame's fourth byte."""
_TLS_RECORDS: Final = (b"\x15\x03", b"\x16\x03")
"""How a server of TLS begins: an alert, or its side of the handshake (RFC 8446, 5.1)."""
_SHOWN_BYTES: Final = 24
_HINT: Final = "--ca-file, PENSTOCK_CA_FILE, ca_file"


async def diagnose(address: str, tls: Tls | None, known_as: str = "") -> UnreachableError | None:
    """What is certainly wrong at `host:port`; None: nothing that can be seen here."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    if tls is None:
        return await _without_tls(address, host, int(port))
    try:
        context = _own_context(tls)
    except MisuseError:
        return None  # the files are being written
    try:
        async with asyncio.timeout(DIAGNOSIS_S):
            reader, writer = await asyncio.open_connection(
                host, int(port), ssl=context, server_hostname=known_as or host
            )
    except TimeoutError:
        await asyncio.sleep(0)  # what was given up is closed in the loop's next round
        return None
    except (OSError, UnicodeError) as error:
        return _why_not(address, error) if isinstance(error, ssl.SSLError) else None
    try:
        if not await _begins(reader):
            return _not_accepted(address, "it ended the connection after the handshake")
        if writer.get_extra_info("ssl_object").selected_alpn_protocol() != "h2":
            return _no_broker(address, "it has TLS, but no HTTP/2 on top")
    except ssl.SSLError as error:
        return _why_not(address, error)
    except OSError:
        return None
    finally:
        writer.transport.abort()  # `close` waits for the other side to say goodbye
    return None


async def _begins(reader: asyncio.StreamReader) -> bool:
    """False: the connection was ended. True: something was said, or nothing yet."""
    try:
        async with asyncio.timeout(_ALERT_S):
            return bool(await reader.read(1))
    except TimeoutError:
        return True


async def _without_tls(address: str, host: str, port: int) -> UnreachableError | None:
    """Of a server that this client asks without TLS. None if it speaks HTTP/2, as brokers do, or
    says nothing."""
    try:
        said = await _answer(host, port, _PREFACE)
        if not said:
            said = await _answer(host, port, _client_hello())
    except (OSError, TimeoutError, UnicodeError):
        return None
    if said.startswith(_TLS_RECORDS):
        return UnreachableError(
            f"{address} uses TLS, and this client does not: give it the CA certificate of the "
            f"cluster ({_HINT})"
        )
    if not said or (len(said) >= _FRAME_HEADER_BYTES and said[3] == _SETTINGS):
        return None
    return _no_broker(address, f"it says {said!r}")


async def _answer(host: str, port: int, hello: bytes) -> bytes:
    """How a server begins its answer; b"" if it hangs up. Raises OSError, TimeoutError.

    By a socket of its own, which is closed even if the loop ends next.
    """
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(DIAGNOSIS_S):
        for family, kind, protocol, _, where in await loop.getaddrinfo(
            host, port, type=socket.SOCK_STREAM
        ):
            with socket.socket(family, kind, protocol) as connection:
                connection.setblocking(False)
                try:
                    await loop.sock_connect(connection, where)
                except OSError:  # of a name with several addresses, another may be served
                    continue
                await loop.sock_sendall(connection, hello)
                return await loop.sock_recv(connection, _SHOWN_BYTES)
    raise ConnectionRefusedError(f"nobody accepts connections at {host}:{port}")


def _client_hello() -> bytes:
    """What a client of TLS sends first, whoever the server is."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    outgoing = ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), outgoing).do_handshake()
    return outgoing.read()


def _no_broker(address: str, seen: str) -> UnreachableError:
    return UnreachableError(
        f"{address}: what listens there does not speak Penstock's protocol ({seen}): check that it "
        "is the address of a broker, and the port the one for clients, not that of metrics or of "
        "another program"
    )


def _why_not(address: str, error: ssl.SSLError) -> UnreachableError:
    reason = (error.reason or str(error)).replace("_", " ").lower()
    if isinstance(error, ssl.SSLCertVerificationError):
        text = (
            f"{address}: its certificate is not accepted ({error.verify_message}): the CA file "
            "must be that of the cluster, and the address one of the names in the certificate"
        )
    elif "alert" in reason and ("certificate" in reason or "unknown ca" in reason):
        return _not_accepted(address, reason)
    else:
        text = f"{address} does not use TLS ({reason}): leave the CA file out ({_HINT})"
    return UnreachableError(text)


def _not_accepted(address: str, reason: str) -> UnreachableError:
    return UnreachableError(
        f"{address} asks for a certificate and does not accept what it got ({reason}): is this the "
        "port for users' certificates? If so, give one that a CA of the users has signed and that "
        "has not ended (--cert and --key, PENSTOCK_CERTIFICATE_FILE and PENSTOCK_KEY_FILE)"
    )


def _own_context(tls: Tls) -> ssl.SSLContext:
    """As gRPC connects. Raises MisuseError."""
    context = Tls(tls.files).client_context()
    context.set_alpn_protocols(["h2"])
    return context

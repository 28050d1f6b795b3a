"""Why no broker at an address answers: whether the other side expects TLS, or has none.

gRPC says "Socket closed" or "handshake failed" for all of it, and tries again until the caller's
timeout. One more connection, made here, tells what is wrong. A gRPC server that does not accept a
client's certificate ends the connection without a word once the client has shaken hands; any other
begins to speak HTTP/2.
"""

import asyncio
import ssl
from typing import Final

from penstock.errors import MisuseError, UnreachableError
from penstock.rpc.tls import Tls

DIAGNOSIS_S: Final = 2.0
_ALERT_S: Final = 0.3
"""How long a server takes to refuse a client without a certificate, once it is connected."""
_HINT: Final = "--ca-file, PENSTOCK_CA_FILE, ca_file"


async def diagnose(address: str, tls: Tls | None, known_as: str = "") -> UnreachableError | None:
    """What is certainly wrong at `host:port`; None: nothing that can be seen here."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    try:
        context = _trusting_anybody() if tls is None else _own_context(tls)
    except MisuseError:
        return None  # the files are being written
    try:
        async with asyncio.timeout(DIAGNOSIS_S):
            reader, writer = await asyncio.open_connection(
                host, int(port), ssl=context, server_hostname=known_as or host
            )
    except ssl.SSLError as error:
        return None if tls is None else _why_not(address, error)
    except (OSError, TimeoutError, UnicodeError):
        return None
    try:
        if tls is None:
            return UnreachableError(
                f"{address} uses TLS, and this client does not: give it the CA certificate of the "
                f"cluster ({_HINT})"
            )
        async with asyncio.timeout(_ALERT_S):
            if not await reader.read(1):
                return _not_accepted(address, "it ended the connection after the handshake")
    except ssl.SSLError as error:
        return _why_not(address, error)
    except (OSError, TimeoutError):
        return None
    finally:
        writer.close()
    return None


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


def _trusting_anybody() -> ssl.SSLContext:
    """To see whether somebody speaks TLS; nothing is sent."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context

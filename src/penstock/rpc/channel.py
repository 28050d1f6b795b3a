"""Channel and server settings, the same on every connection in a cluster.

Keepalive makes a half-open connection (a frozen peer, a pulled cable) fail within `KEEPALIVE_MS +
KEEPALIVE_TIMEOUT_MS`; a killed process is noticed at once by its closed socket. It only cleans up:
brokers have heartbeats, and clients leave a leader that does not answer long before. With pings
every 10 s, a third of the cost of a thousand idle clients was pings; with every 40 s, a member of a
group sends none, because its coordinator sends a message every 30 s.

The bandwidth-delay product of a connection is not measured to size its window: gRPC pings for that
after every message on an idle connection, and a heartbeat became three packets and a timer. The
window is fixed instead; a larger message gets its own size in addition.
"""

from typing import Final

import grpc

from penstock.rpc.tls import Tls

MAX_MESSAGE_BYTES: Final = 64 * 1024 * 1024
"""Largest message either side accepts: a 50 MiB fetch answer and its framing."""
KEEPALIVE_MS: Final = 40_000
KEEPALIVE_TIMEOUT_MS: Final = 5_000
PING_INTERVAL_MIN_MS: Final = 5_000
"""How often clients in other languages may ping before a broker closes the connection."""
WINDOW_BYTES: Final = 4 * 1024 * 1024
"""How much a peer may send before the other has read it: 80 MB/s at a round trip time of 50 ms."""
FRAME_BYTES: Final = 128 * 1024
"""Largest HTTP/2 frame a peer may send, gRPC's default is 16 KiB. A fetch answer of megabytes costs
both sides 6 % less processor time this way; a small message waits for one such frame at most."""
HANDSHAKE_MS: Final = 10_000
"""How long a connection may take until its client is known to speak HTTP/2, over TLS if there is
TLS. gRPC's default is two minutes, for which whoever connects and says nothing is waited for."""
CONNECTION_CALLS_MAX: Final = 2_000
"""Calls and streams of one connection at one time; its client waits with further ones."""
CONNECTION_AGE_S: Final = 3_600.0
"""About how long a connection over TLS lives; what its certificate proved is then proved again.
So certificates of a CA that is trusted no longer are gone after this time and the grace."""
CONNECTION_GRACE_S: Final = 60.0
"""How long calls may go on after that; new ones use a new connection."""
USER_METADATA_BYTES_MAX: Final = 256 * 1024
"""Of a call that a broker makes for a user: all groups of a token, 200, each with its issuer of 512
characters at most, are 150 KiB."""

_COMMON: Final[list[tuple[str, int]]] = [
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", WINDOW_BYTES),
    ("grpc.http2.max_frame_size", FRAME_BYTES),
]
CHANNEL_OPTIONS: Final[list[tuple[str, int]]] = [
    *_COMMON,
    ("grpc.keepalive_permit_without_calls", 1),
    # A restarted broker is back within a second: do not wait out gRPC's default 120 s.
    ("grpc.initial_reconnect_backoff_ms", 50),
    # Also the time one attempt may take: a loaded machine needs more than the back-off.
    ("grpc.min_reconnect_backoff_ms", 2_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # A restarted pod has another address behind its name: ask again soon, not after 30 s.
    ("grpc.dns_min_time_between_resolutions_ms", 500),
    # Channels of one process to one address must not share a broken connection's back-off.
    ("grpc.use_local_subchannel_pool", 1),
]
SERVER_OPTIONS: Final[list[tuple[str, int]]] = [
    *_COMMON,
    ("grpc.max_concurrent_streams", CONNECTION_CALLS_MAX),
    ("grpc.server_handshake_timeout_ms", HANDSHAKE_MS),
    ("grpc.http2.min_ping_interval_without_data_ms", PING_INTERVAL_MIN_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    # Two servers on one port would share its connections silently; refuse the second instead.
    ("grpc.so_reuseport", 0),
]


def connection_options(connections_max: int | None) -> list[tuple[str, int]]:
    """For servers: how many connections each port has at one time, those without a handshake
    included. Further ones are cut as soon as they are made. None: no limit."""
    if connections_max is None:
        return []
    return [("grpc.max_allowed_incoming_connections", connections_max)]


def metadata_options(bytes_max: int | None) -> list[tuple[str, int]]:
    """For servers: how much metadata a call may have. None: as gRPC has it."""
    if bytes_max is None:
        return []
    # Between the two, gRPC refuses some calls, at random.
    return [
        ("grpc.max_metadata_size", bytes_max),
        ("grpc.absolute_max_metadata_size", bytes_max),
    ]


def aging_options(age_s: float) -> list[tuple[str, int]]:
    """For servers over TLS; gRPC itself varies the age by a tenth, so that not all come at once."""
    return [
        ("grpc.max_connection_age_ms", int(age_s * 1000)),
        ("grpc.max_connection_age_grace_ms", int(min(age_s, CONNECTION_GRACE_S) * 1000)),
    ]


def open_aio_channel(
    address: str, tls: Tls | None = None, *, known_as: str = ""
) -> grpc.aio.Channel:
    """An asyncio channel to `host:port`; connects lazily, owned by the caller.

    `tls` None: plaintext. `known_as`: the name in the server's certificate, if not that in
    `address`, as through a tunnel.
    """
    if tls is None:
        return grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
    options = _secure_options(known_as)
    return grpc.aio.secure_channel(address, tls.channel_credentials(), options=options)


def open_channel(address: str, tls: Tls | None = None, *, known_as: str = "") -> grpc.Channel:
    """A blocking channel to `host:port`; connects lazily, owned by the caller. See above."""
    if tls is None:
        return grpc.insecure_channel(address, options=CHANNEL_OPTIONS)
    return grpc.secure_channel(
        address, tls.channel_credentials(), options=_secure_options(known_as)
    )


def _secure_options(known_as: str) -> list[tuple[str, int | str]]:
    override = [("grpc.ssl_target_name_override", known_as)] if known_as else []
    return [*CHANNEL_OPTIONS, *override]

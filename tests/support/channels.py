"""Channels of tests to a server that they know to be there."""

import grpc

from penstock.rpc.channel import CHANNEL_OPTIONS
from penstock.rpc.tls import Tls

_PATIENT = list({**dict(CHANNEL_OPTIONS), "grpc.min_reconnect_backoff_ms": 120_000}.items())


def patient_channel(address: str, tls: Tls | None = None) -> grpc.Channel:
    """A blocking channel to `host:port`, owned by the caller; calls fail where nobody listens.

    Those of the product give an attempt to connect two seconds and then fail the call: clients try
    again. On a crowded machine a test that asks once was told that a living broker is not there.
    """
    if tls is not None:
        return grpc.secure_channel(address, tls.channel_credentials(), options=_PATIENT)
    return grpc.insecure_channel(address, options=_PATIENT)


def patient_aio_channel(address: str, tls: Tls | None = None) -> grpc.aio.Channel:
    """As `patient_channel`, for asyncio."""
    if tls is not None:
        return grpc.aio.secure_channel(address, tls.channel_credentials(), options=_PATIENT)
    return grpc.aio.insecure_channel(address, options=_PATIENT)

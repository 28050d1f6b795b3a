"""Channels of tests to a server that they know to be there."""

import grpc

from penstock.rpc.channel import CHANNEL_OPTIONS

_PATIENT = list({**dict(CHANNEL_OPTIONS), "grpc.min_reconnect_backoff_ms": 120_000}.items())


def patient_channel(address: str) -> grpc.Channel:
    """A blocking channel to `host:port`, owned by the caller; calls fail where nobody listens.

    Those of the product give an attempt to connect two seconds and then fail the call: clients try
    again. On a crowded machine a test that asks once was told that a living broker is not there.
    """
    return grpc.insecure_channel(address, options=_PATIENT)


def patient_aio_channel(address: str) -> grpc.aio.Channel:
    """As `patient_channel`, for asyncio."""
    return grpc.aio.insecure_channel(address, options=_PATIENT)

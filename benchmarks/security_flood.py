"""Calls with bad tokens, as many as a rate says: `python -m benchmarks.security_flood ADDRESS …`.

Each call shows another token, so that no answer can be remembered. Ends after `--seconds`, and
prints how many calls were refused, as JSON.
"""

import argparse
import asyncio
import base64
import json
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from penstock.proto.v1.broker_pb2 import MetadataRequest

PER_S = 10_000
BEAT_S = 0.01
OPEN_MAX = 2_000
METHOD = "/penstock.proto.v1.BrokerService/Metadata"
REQUEST = MetadataRequest().SerializeToString()
HEADER = {"alg": "RS256", "typ": "JWT"}


@contextmanager
def flooded(address: str, ca_file: str, seconds: float) -> Iterator[list[dict[str, Any]]]:
    """Floods a broker from another process while the block runs; afterwards the list has what it
    said: `refused`, and in how many `seconds`."""
    command = [sys.executable, "-m", __name__, address, "--ca-file", ca_file]
    said: list[dict[str, Any]] = []
    with subprocess.Popen(
        [*command, "--seconds", str(seconds)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            process.stdout.readline()
            yield said
            said.append(json.loads(process.stdout.readline()))
        finally:
            process.kill()


def _token() -> str:
    parts = [json.dumps(HEADER).encode(), secrets.token_bytes(300), secrets.token_bytes(256)]
    return ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts)


async def flood(address: str, ca: bytes, seconds: float, per_s: int) -> dict[str, Any]:
    """At most OPEN_MAX calls are open at once: whoever is refused late sends fewer."""
    refused = under_way = 0

    async def call() -> None:
        nonlocal refused, under_way
        under_way += 1
        try:
            metadata = (("authorization", f"Bearer {_token()}"),)
            await ask(REQUEST, metadata=metadata, timeout=10.0)
        except grpc.aio.AioRpcError:
            refused += 1
        finally:
            under_way -= 1

    began = time.monotonic()
    async with (
        grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(ca)) as channel,
        asyncio.TaskGroup() as tasks,
    ):
        ask: Any = channel.unary_unary(METHOD)
        await call()
        sys.stdout.write("flooding\n")
        sys.stdout.flush()
        while time.monotonic() < began + seconds:
            for _ in range(min(int(per_s * BEAT_S), OPEN_MAX - under_way)):
                tasks.create_task(call())
            await asyncio.sleep(BEAT_S)
        took_s = time.monotonic() - began
    return {"refused": refused, "seconds": took_s}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("address", help="of a broker's port for clients")
    parser.add_argument("--ca-file", required=True, type=Path)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--per-second", type=int, default=PER_S)
    args = parser.parse_args()
    told = asyncio.run(
        flood(args.address, args.ca_file.read_bytes(), args.seconds, args.per_second)
    )
    print(json.dumps(told))
    return 0


if __name__ == "__main__":
    sys.exit(main())

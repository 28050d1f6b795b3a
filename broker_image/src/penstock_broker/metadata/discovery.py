"""Finds controllers: resolves every name to all its addresses, and tries all of them at once.

    flights-controllers.ns.svc:9093 ─▶ 10.0.1.7:9093 ─▶ ready     ─▶ attempt
                                       10.0.2.4:9093 ─▶ refused   ─▶ attempt, which says why
                                       10.0.3.9:9093 ─▶ no answer ─▶ given up after 1 s

The name of a headless Service stands for its current pods: it is looked up in every round, so that
new pods are found. A pod whose node died stays in the list for minutes and swallows connections: it
must not delay the others, because a new controller waits for the brokers it knew only for the
session timeout (1.8 s).
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from random import Random
from typing import Final, TypeAlias

import grpc

from penstock.errors import ClusterError, ErrorCode
from penstock.rpc.transport import Transport
from penstock_broker.config import parse_address

Attempt: TypeAlias = Callable[[str], Awaitable[bool]]
Note: TypeAlias = Callable[[str, Exception], None]
_Knocks: TypeAlias = "asyncio.Queue[tuple[str, bool]]"
_CONNECT_S: Final = 1.0
_SETTLED: Final = frozenset(
    {grpc.ChannelConnectivity.READY, grpc.ChannelConnectivity.TRANSIENT_FAILURE}
)


async def ask_all(
    transport: Transport,
    controllers: Sequence[str],
    attempt: Attempt,
    note: Note,
    chance: Random,
) -> bool:
    """One round over all controllers, in the order in which they answer, one attempt at a time.

    An attempt that had a session (True) ends the round: which controller is active is then unknown
    again. `note` gets the names and addresses that do not answer. `chance` shuffles the addresses.
    """
    addresses = await _resolve(transport, controllers, note)
    chance.shuffle(addresses)
    knocks: _Knocks = asyncio.Queue()
    async with asyncio.TaskGroup() as tasks:
        knocking = [
            tasks.create_task(_knock(transport, address, knocks), name=f"knock at {address}")
            for address in addresses
        ]
        for _ in addresses:
            address, answered = await knocks.get()
            if not answered:
                note(address, _problem(f"no connection within {_CONNECT_S:g} s"))
            elif await attempt(address):
                for task in knocking:
                    task.cancel()
                return True
    return False


async def _knock(transport: Transport, address: str, knocks: _Knocks) -> None:
    """Connects as a gRPC client does: a frozen process accepts TCP, but not HTTP/2.

    The connection is not kept: otherwise those to all controllers would stay open for as long as a
    session, which can be days.
    """
    answered = False
    async with transport.open(address) as channel:
        with suppress(TimeoutError):
            async with asyncio.timeout(_CONNECT_S):
                while (state := channel.get_state(try_to_connect=True)) not in _SETTLED:
                    await channel.wait_for_state_change(state)
            answered = True
    knocks.put_nowait((address, answered))


async def _resolve(transport: Transport, controllers: Sequence[str], note: Note) -> list[str]:
    """Returns every address of every name once, sorted."""
    found: set[str] = set()
    for controller in controllers:
        host, port = parse_address(controller, "--controllers")
        try:
            found.update(await transport.resolve(host, port))
        except (OSError, UnicodeError) as error:
            note(controller, _problem(f"the name {host} cannot be resolved: {error}"))
    return sorted(found)


def _problem(reason: str) -> ClusterError:
    return ClusterError(reason, ErrorCode.CONTROLLER_UNAVAILABLE)

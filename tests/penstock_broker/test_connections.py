"""Connections that a process counts at its ports, and sockets that are none of these."""

import socket
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.waiting import wait_until

from penstock_broker.connections import Connections


def listening(stack: ExitStack, host: str) -> tuple[socket.socket, int]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    server = stack.enter_context(socket.create_server((host, 0), family=family))
    return server, int(server.getsockname()[1])


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_what_was_accepted_at_a_port_counts_until_it_is_closed_here(host: str) -> None:
    connections = Connections()
    with ExitStack() as stack:
        server, port = listening(stack, host)
        assert connections.by_port()[port] == 0
        first = stack.enter_context(socket.create_connection((host, port), 60))
        assert connections.by_port()[port] == 0, "nobody accepted it"
        accepted = stack.enter_context(server.accept()[0])
        assert connections.by_port()[port] == 1
        second = stack.enter_context(socket.create_connection((host, port), 60))
        stack.enter_context(server.accept()[0])
        assert connections.by_port()[port] == 2
        first.close()
        assert connections.by_port()[port] == 2, "it holds a descriptor still"
        accepted.close()
        wait_until(lambda: connections.by_port()[port] == 1, what="one is left")
        second.close()
    assert port not in connections.by_port()


def test_a_port_that_comes_later_is_found_and_those_of_others_are_not(tmp_path: Path) -> None:
    with ExitStack() as stack:
        _, first = listening(stack, "127.0.0.1")
        connections = Connections()
        assert connections.by_port()[first] == 0
        _, second = listening(stack, "127.0.0.1")
        assert {first, second} <= connections.by_port().keys()

        other = tmp_path / "other"
        (other / "fd").mkdir(parents=True)
        (other / "net").symlink_to("/proc/self/net")
        assert Connections(other).by_port() == {}, "it holds none of these sockets"


def test_nothing_is_counted_where_the_kernel_says_nothing(tmp_path: Path) -> None:
    assert Connections(tmp_path).by_port() == {}

"""How many descriptors a server may have, and what connections get of them."""

import resource
import subprocess
import sys

import pytest

from penstock_broker.descriptors import CONNECTIONS_MAX, KEPT, PORTS, connections_max, raise_limit

RAISE = """
import resource
from penstock_broker.descriptors import raise_limit
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
print(raise_limit(), *resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def limits_after(soft: int, hard: int) -> list[int]:
    """What a process says that had these: its answer, its soft and its hard limit."""
    script = RAISE.format(soft=soft, hard=hard)
    run = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=60
    )
    return [int(word) for word in run.stdout.split()]


def test_a_server_takes_what_its_hard_limit_allows() -> None:
    assert limits_after(256, 2_000) == [2_000, 2_000, 2_000]


def test_a_limit_that_cannot_be_raised_stays() -> None:
    assert limits_after(512, 512) == [512, 512, 512]


def test_a_kernel_that_allows_less_than_the_hard_limit_is_no_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> None:
        raise ValueError("current limit exceeds maximum limit")

    monkeypatch.setattr("resource.getrlimit", lambda _: (256, resource.RLIM_INFINITY))
    monkeypatch.setattr("resource.setrlimit", refuse)
    assert raise_limit() == 256


@pytest.mark.parametrize("descriptors", [256, 1_024, 2_000, 20_000, 100_000, 1 << 20])
def test_connections_of_all_ports_leave_descriptors_for_the_rest(descriptors: int) -> None:
    all_ports = PORTS * connections_max(descriptors)
    assert all_ports <= descriptors - min(KEPT, descriptors // 2)
    assert connections_max(descriptors) <= CONNECTIONS_MAX


def test_many_descriptors_are_used() -> None:
    assert connections_max(20_000) == 2_375
    assert connections_max(1 << 20) == CONNECTIONS_MAX == 30_000

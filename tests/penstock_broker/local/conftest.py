"""Fixtures of the tests of local clusters."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from support.local import processes_of, write_manifest
from support.waiting import wait_until


@pytest.fixture
def manifest(tmp_path: Path) -> Callable[..., Path]:
    """Writes a manifest: `manifest(brokers=1, partitions=2)`."""
    return partial(write_manifest, tmp_path)


@pytest.fixture(autouse=True)
def nothing_is_left_running(tmp_path: Path) -> Iterator[None]:
    """Whatever a test started below its folder has ended when the test has."""
    yield
    wait_until(lambda: not processes_of(tmp_path), what="nothing is left running")

"""A cluster of real processes, for attackers who reach every port of it."""

from collections.abc import Iterator

import pytest
from support.cluster import Cluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One broker and its controller, for all tests of a module: use topics of your own."""
    with Cluster(tmp_path_factory.mktemp("attacked")) as running:
        yield running

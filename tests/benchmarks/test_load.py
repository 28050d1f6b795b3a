"""The load and the probe of benchmarks: what they do not write, nobody measures."""

import pytest

from benchmarks.load import Writing


class Failing(Writing):
    def _run(self) -> None:
        raise ConnectionError("nobody is there")


def test_a_load_that_failed_is_no_load() -> None:
    with pytest.raises(ConnectionError, match="nobody is there"):
        Failing("127.0.0.1:1").stop()

"""What a test does where a program that it needs is not installed: it is skipped, and fails where
PENSTOCK_TEST_EVERYTHING is set, as before a release. `make setup` installs all packages."""

import os
from typing import NoReturn

import pytest


def cannot_run(reason: str) -> NoReturn:
    """`reason`: what is missing, and how to get it."""
    if os.environ.get("PENSTOCK_TEST_EVERYTHING"):
        pytest.fail(
            f"PENSTOCK_TEST_EVERYTHING is set, so no test may be skipped: {reason}", pytrace=False
        )
    pytest.skip(reason)

"""What a test does where a program that it needs is not installed: it is skipped on a developer's
machine, and fails in CI, which promises to run everything. `make setup` installs all packages."""

import os
from typing import NoReturn

import pytest


def cannot_run(reason: str) -> NoReturn:
    """`reason`: what is missing, and how to get it."""
    if os.environ.get("CI"):
        pytest.fail(f"CI is set, so no test may be skipped: {reason}", pytrace=False)
    pytest.skip(reason)

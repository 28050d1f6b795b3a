"""`penstock.client` imports what it exports with the first name that is used, and not before."""

import json
import subprocess
import sys

import pytest

import penstock.client
from penstock.client import exported


def modules_after(program: str) -> set[str]:
    """What a new Python has imported then."""
    done = subprocess.run(
        [sys.executable, "-c", f"{program}\nimport json, sys\nprint(json.dumps([*sys.modules]))"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return set(json.loads(done.stdout))


@pytest.mark.parametrize(
    ("program", "imports"),
    [
        ("import penstock.client", False),
        ("import penstock.client.config", False),
        ("from penstock.client import Consumer", True),
        ("import penstock.client; penstock.client.Consumer", True),
        ("from penstock.client import *; Consumer", True),
    ],
)
def test_all_names_are_imported_with_the_first_that_is_used(program: str, imports: bool) -> None:
    assert ("penstock.client.exported" in modules_after(program)) is imports


def test_every_name_is_there_and_listed() -> None:
    assert penstock.client.__all__ == exported.__all__
    assert set(exported.__all__) <= set(dir(penstock.client))
    for name in exported.__all__:
        assert getattr(penstock.client, name) is getattr(exported, name)


def test_a_name_that_is_not_exported_is_an_attribute_error() -> None:
    for name in ("Konsumer", "asyncio", "_private"):
        with pytest.raises(AttributeError, match=f"'penstock.client' has no attribute '{name}'"):
            getattr(penstock.client, name)

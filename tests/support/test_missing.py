"""Where everything is to be tested, a missing program fails a test."""

import re
from pathlib import Path
from typing import Final

import pytest
from support.missing import cannot_run

TESTS: Final = Path(__file__).resolve().parents[1]
_SKIPS: Final = re.compile(r"pytest\.skip\(|skipif|importorskip")
ALLOWED: Final = {
    "support/missing.py",
    "support/test_missing.py",
    "contracts/test_metadata_store.py",
    "penstock_broker/store/test_rocks.py",
}
"""The last three skip for what is no program: a store that only one process may open, a port that
is taken, a machine that may mount nothing."""


@pytest.mark.parametrize("given", [None, ""])
def test_elsewhere_a_test_is_skipped(given: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PENSTOCK_TEST_EVERYTHING", raising=False)
    if given is not None:
        monkeypatch.setenv("PENSTOCK_TEST_EVERYTHING", given)
    with pytest.raises(pytest.skip.Exception, match="no helm here"):
        cannot_run("no helm here")


def test_where_everything_is_tested_it_fails_and_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PENSTOCK_TEST_EVERYTHING", "true")
    with pytest.raises(pytest.fail.Exception, match=r"TEST_EVERYTHING is set.*: no helm here"):
        cannot_run("no helm here")


def test_no_test_skips_in_another_way() -> None:
    found = {
        str(path.relative_to(TESTS))
        for path in TESTS.rglob("*.py")
        if _SKIPS.search(path.read_text())
    }
    assert found == ALLOWED

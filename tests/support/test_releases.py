"""Former releases that a clone lacks: whoever works on a shallow one goes on, CI does not."""

from pathlib import Path

import pytest
from support import releases

LACKING = "0" * 40


@pytest.fixture
def lacking(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where to put releases; the only one is not in the history."""
    monkeypatch.setattr(releases, "commits", lambda: {"N-1": LACKING})
    return tmp_path


def test_ci_fails_without_the_history_of_former_releases(
    monkeypatch: pytest.MonkeyPatch, lacking: Path
) -> None:
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match=f"no commit {LACKING}.*whole history"):
        releases.Releases(lacking)


def test_elsewhere_tests_of_former_releases_are_skipped_without_it(
    monkeypatch: pytest.MonkeyPatch, lacking: Path
) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match=f"no commit {LACKING}"):
        releases.Releases(lacking)

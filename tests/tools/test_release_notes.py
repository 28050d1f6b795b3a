"""Release notes are the changelog's words."""

from pathlib import Path

import pytest

from tools.release_notes import NoNotesError, notes

ROOT = Path(__file__).resolve().parents[2]
CHANGELOG = """# Changelog

## Unreleased

- c

## 0.2.0 (2026-11-01)

### Added

- b

## 0.1.0

- a
"""


def test_a_version_has_its_part_and_no_other() -> None:
    assert notes(CHANGELOG, "0.2.0") == "### Added\n\n- b"
    assert notes(CHANGELOG, "0.1.0") == "- a"
    assert notes(CHANGELOG, "unreleased") == "- c"


def test_an_unknown_version_is_refused_with_those_there_are() -> None:
    with pytest.raises(NoNotesError, match=r"no notes for 0\.3\.0; it has 0\.1\.0, 0\.2\.0, unrel"):
        notes(CHANGELOG, "0.3.0")


def test_the_changelog_has_notes_for_the_next_release() -> None:
    assert notes((ROOT / "CHANGELOG.md").read_text(), "Unreleased").startswith("### ")

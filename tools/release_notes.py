"""`python -m tools.release_notes [VERSION]`: a version's part of CHANGELOG.md, for its release.

Without VERSION: what is not released yet.
"""

import argparse
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


class NoNotesError(Exception):
    """The changelog has no such version, or nothing about it."""


def notes(changelog: str, version: str) -> str:
    """The text under the heading `## VERSION`, without it. Raises NoNotesError."""
    parts = re.split(r"^## (.+)$", changelog, flags=re.MULTILINE)
    found = dict(zip(parts[1::2], parts[2::2], strict=True))
    by_version = {title.split()[0].lower(): text.strip() for title, text in found.items()}
    text = by_version.get(version.lower(), "")
    if not text:
        raise NoNotesError(
            f"CHANGELOG.md has no notes for {version}; it has {', '.join(sorted(by_version))}"
        )
    return text


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tools.release_notes", description="Print a version's notes."
    )
    parser.add_argument("version", nargs="?", default="Unreleased", help="such as 0.1.0")
    try:
        print(notes((ROOT / "CHANGELOG.md").read_text(), parser.parse_args().version))
    except NoNotesError as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()

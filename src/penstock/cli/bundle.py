"""A support bundle: one zip file with what helpers need to see, and without secrets.

    entries ──redact──▶ FILE.zip, which only its owner may read, and a row per file in it

What cannot be collected becomes a line in errors.txt: a broken cluster must always produce a
bundle. The entries are made by `kube.report` and `cluster_report`.
"""

import json
import os
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

from penstock.cli.redact import redact, redact_text
from penstock.errors import PenstockError

ERRORS: Final = "errors.txt"

Entry = tuple[str, str]
"""(name in the zip, text that has been redacted)."""


def write_bundle(
    file: Path, entries: Iterable[Entry], errors: list[str]
) -> list[dict[str, object]]:
    """Writes the bundle; returns a row per file in it. `errors` may grow with the entries.

    Raises OSError for the file itself. A bundle that is not finished, as at Ctrl-C, is removed: it
    cannot be opened, and would keep the next one from its name.
    """
    rows: list[dict[str, object]] = []

    def add(name: str, text: str) -> None:
        bundle.writestr(name, text)
        rows.append({"file": name, "bytes": len(text.encode())})

    with open(file, "xb", opener=_private) as target:
        try:
            with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as bundle:
                for name, text in entries:
                    add(name, text)
                if errors:
                    add(ERRORS, redact_text("\n".join(dict.fromkeys(errors)) + "\n"))
        except BaseException:
            file.unlink()
            raise
    return rows


def _private(path: str, flags: int) -> int:
    """Logs can tell what only whoever may read them should know."""
    return os.open(path, flags, 0o600)


def attempt(ask: Callable[[], Any], errors: list[str]) -> Any:
    """The answer, or None and a line in `errors`."""
    try:
        return ask()
    except PenstockError as error:
        errors.append(error.message)
    except OSError as error:
        errors.append(f"{error.filename or 'a connection'}: {error.strerror or error}")
    return None


def dump(thing: Any) -> str:
    """As JSON, without secrets."""
    return json.dumps(redact(thing), indent=1, ensure_ascii=False, default=str) + "\n"

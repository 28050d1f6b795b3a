"""Loads the parts of the broker distribution that some commands run; says what is missing.

The documented exception to the layers (see the package): by name, at run time.
"""

import importlib
from types import ModuleType

from penstock.errors import MisuseError


def load_broker_module(name: str, purpose: str) -> ModuleType:
    """Imports `penstock_broker.<name>`; raises MisuseError that says what to install."""
    try:
        return importlib.import_module(f"penstock_broker.{name}")
    except ModuleNotFoundError as error:
        raise MisuseError(
            f"{purpose} needs the broker, and the module {error.name!r} is not installed; "
            "install it with: pip install 'penstock[broker,cli]'"
        ) from error

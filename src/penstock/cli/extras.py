"""What an installation may lack: extras of the package, the broker distribution.

Loading the broker's parts is the documented exception to the layers (see the package): by name,
at run time. Standard library only: `__main__` asks here when everything else is missing.
"""

import importlib
from types import ModuleType

from penstock.errors import MisuseError


def describe_missing(error: ModuleNotFoundError, purpose: str, extra: str) -> str | None:
    """What is missing and how to install it; None for one of Penstock's own modules: a defect."""
    if error.name is None or error.name.partition(".")[0].startswith("penstock"):
        return None
    return (
        f"{purpose} needs the module {error.name!r}, which is not installed; "
        f"install it with: pip install 'penstock[{extra}]'"
    )


def load_broker_module(name: str, purpose: str) -> ModuleType:
    """Imports `penstock_broker.<name>`; raises MisuseError that says what to install."""
    try:
        return importlib.import_module(f"penstock_broker.{name}")
    except ModuleNotFoundError as error:
        raise MisuseError(
            f"{purpose} needs the broker, but the module {error.name!r} is not installed; "
            "install it with: pip install 'penstock[local]'"
        ) from error

"""Which cluster a command talks to."""

import importlib
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import MisuseError

if TYPE_CHECKING:
    from penstock.client import Admin

DEFAULT_BOOTSTRAP: Final = "localhost:9092"


def resolve_bootstrap(given: str | None) -> str:
    """What was given, else the one running local cluster, else `localhost:9092`.

    Raises MisuseError if several local clusters run: guessing would be worse.
    """
    if given:
        return given
    try:
        state: Any = importlib.import_module("penstock_broker.local.state")
    except ModuleNotFoundError:
        return DEFAULT_BOOTSTRAP
    running = state.running_clusters()
    if len(running) > 1:
        names = ", ".join(f"{one.cluster} ({one.bootstrap})" for one in running)
        raise MisuseError(f"several local clusters run; choose one with --bootstrap: {names}")
    return str(running[0].bootstrap) if running else DEFAULT_BOOTSTRAP


def open_admin(bootstrap: str | None) -> "Admin":
    """An admin client, owned by the caller."""
    from penstock.client import Admin  # noqa: PLC0415 - grpc only when it is needed

    return Admin(resolve_bootstrap(bootstrap))

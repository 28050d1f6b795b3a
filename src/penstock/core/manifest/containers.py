"""Containers of a pod by name: a sidecar that others inject may come first. Pure."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

BROKER: Final = "broker"
CONTROLLER: Final = "controller"


def container_of(
    containers: Iterable[Mapping[str, Any]] | None, *names: str
) -> Mapping[str, Any] | None:
    """The first with one of these names, of a pod's `containers` or `containerStatuses`."""
    return next((each for each in containers or () if each.get("name") in names), None)

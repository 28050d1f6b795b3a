"""What stands for a value in help: the word of the thing, one for each, as TOPIC, SECONDS, FILE.

typer shows Python's types (`--topic <str>`) and has no setting for it, so the tree of commands is
gone through once. An option that needs a word of its own brings its `metavar`.
"""

from collections.abc import Mapping
from typing import Any, Final

from typer.core import TyperArgument

METAVARS: Final[Mapping[str, str]] = {
    "--bootstrap": "HOST:PORT[,…]",
    "--broker": "ID",
    "--churn": "SECONDS",
    "--cluster": "NAME",
    "--consumers": "N",
    "--context": "CONTEXT",
    "--count": "N",
    "--days": "DAYS",
    "--delimiter": "DELIMITER",
    "--duration": "SECONDS",
    "--epoch": "EPOCH",
    "--file": "FILE",
    "--format": "FORMAT",
    "--group": "GROUP",
    "--group-prefix": "PREFIX",
    "--history": "FILE",
    "--interval": "SECONDS",
    "--key": "KEY",
    "--key-delimiter": "DELIMITER",
    "--kubeconfig": "FILE",
    "--members": "N",
    "--mutations-per-minute": "N",
    "--namespace": "NAMESPACE",
    "--node": "NODE",
    "--null": "TEXT",
    "--offset": "OFFSET",
    "--out": "FILE",
    "--partition": "PARTITION",
    "--partitions": "N",
    "--port": "PORT",
    "--producers": "N",
    "--rate": "N",
    "--reason": "TEXT",
    "--record-bytes": "BYTES",
    "--records": "N",
    "--replicas": "N",
    "--request-millis-per-second": "MILLISECONDS",
    "--streams": "N",
    "--tail": "LINES",
    "--to-offset": "OFFSET",
    "--topic": "TOPIC",
    "--topic-id": "ID",
    "--topic-prefix": "PREFIX",
    "--transactional-id-prefix": "PREFIX",
}
"""By the option's long name."""


class _Argument(TyperArgument):
    """Is its metavar, in usage lines and in the list, without a type."""

    def display_type_rich(self, ctx: Any) -> str | None:  # noqa: ARG002 - typer's
        return None

    def _usage_display_name(self) -> str:
        name = self.display_name_raw
        return name if self.required or name.startswith("[") else f"[{name}]"


def name_values(command: Any) -> None:
    """Of a command, or a group with all commands below it."""
    for child in getattr(command, "commands", {}).values():
        name_values(child)
    for one in command.params:
        if one.param_type_name == "argument":
            one.__class__ = _Argument
        elif one.metavar is None:
            choices = _choices(one)
            one.metavar = "|".join(choices) or METAVARS.get(max(one.opts, key=len))


def _choices(option: Any) -> list[str]:
    """Those that typer names; versions before 0.29 show them by themselves."""
    described: Any = getattr(option, "type_descriptor", None)
    if not getattr(described, "is_choice", False):
        return []
    return [str(each.value) for each in described.choices]

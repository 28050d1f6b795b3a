"""What the shell completes besides commands: names of topics and groups, names of settings.

TAB ─▶ the cluster that the command would talk to, unless that is on Kubernetes ─▶ names
       within TIMEOUT_MS, or nothing: whoever types is never kept waiting, nor told of errors
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, cast

import typer

if TYPE_CHECKING:
    from penstock.client import Admin

TIMEOUT_MS: Final = 300
"""Of connecting, and of the request; with imports it stays within half a second."""


def topics(context: typer.Context, incomplete: str) -> list[str]:
    """Names of topics that begin so."""
    return _named(context, incomplete, lambda admin: admin.list_topics())


def groups(context: typer.Context, incomplete: str) -> list[str]:
    """Ids of groups that begin so."""
    return _named(context, incomplete, lambda admin: [one.group_id for one in admin.list_groups()])


def settings(incomplete: str) -> list[str]:
    """`KEY=` of topics' settings."""
    return [f"{name}=" for name in setting_names(incomplete)]


def setting_names(incomplete: str) -> list[str]:
    """Of topics' settings."""
    from penstock.core.topic import CONFIG_KEYS  # noqa: PLC0415 - not needed for --help

    return [key.name for key in CONFIG_KEYS if key.name.startswith(incomplete)]


def _named(
    context: typer.Context, incomplete: str, ask: "Callable[[Admin], Iterable[str]]"
) -> list[str]:
    try:
        return sorted(name for name in _asked(context, ask) if name.startswith(incomplete))
    except Exception:  # noqa: BLE001 - see the module
        return []


def _asked(context: typer.Context, ask: "Callable[[Admin], Iterable[str]]") -> Iterable[str]:
    from penstock.cli.connect import Wanted  # noqa: PLC0415 - it needs the options of commands
    from penstock.client import Admin  # noqa: PLC0415 - grpc only when it is needed

    before: dict[str, Any] = context.find_root().params
    files = {f"{name}_file": before.get(f"{name}_file") for name in ("ca", "token")}
    files |= {f"{name}_file": before.get(name) for name in ("certificate", "key")}
    wanted = Wanted(
        before.get("cluster"), files=cast("Any", files), profile=before.get("profile_name")
    )
    bootstrap = context.params.get("bootstrap")
    if wanted.means_kubernetes(bootstrap):
        return ()
    where = wanted.locate(bootstrap)
    timeouts = {"connect_timeout_ms": TIMEOUT_MS, "request_timeout_ms": TIMEOUT_MS}
    with Admin(where.bootstrap, **cast("Any", {**where.options, **timeouts})) as admin:
        return list(ask(admin))

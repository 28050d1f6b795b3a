"""What the shell completes besides commands: names of topics and groups, names of settings.

TAB ─▶ the cluster that the command would talk to, unless that is on Kubernetes ─▶ names
       within TIMEOUT_S, or nothing: whoever types is never kept waiting, nor told of errors

To reach a Cluster on Kubernetes alone takes longer than that: no names of one are completed.
"""

from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, cast

import typer

if TYPE_CHECKING:
    from penstock.client.admin.asking import Asking
    from penstock.client.config import ClientOptions

    Ask = Callable[[Asking], Awaitable[Iterable[str]]]

TIMEOUT_S: Final = 0.3
"""Of connecting and the request together; what Python needs to start comes on top."""


def topics(context: typer.Context, incomplete: str) -> list[str]:
    """Names of topics that begin so."""

    def ask() -> "Ask":
        from penstock.client.admin.topic_calls import list_topics  # noqa: PLC0415 - as below

        return list_topics

    return _named(context, incomplete, ask)


def groups(context: typer.Context, incomplete: str) -> list[str]:
    """Ids of groups that begin so."""

    def ask() -> "Ask":
        from penstock.client.admin.group_calls import list_groups  # noqa: PLC0415 - as below

        async def ids(asking: "Asking") -> list[str]:
            return [one.group_id for one in await list_groups(asking)]

        return ids

    return _named(context, incomplete, ask)


def settings(incomplete: str) -> list[str]:
    """`KEY=` of topics' settings."""
    return [f"{name}=" for name in setting_names(incomplete)]


def setting_names(incomplete: str) -> list[str]:
    """Of topics' settings."""
    from penstock.core.topic import CONFIG_KEYS  # noqa: PLC0415 - not needed for --help

    return [key.name for key in CONFIG_KEYS if key.name.startswith(incomplete)]


def _named(context: typer.Context, incomplete: str, ask: "Callable[[], Ask]") -> list[str]:
    try:
        return sorted(name for name in _asked(context, ask) if name.startswith(incomplete))
    except Exception:  # noqa: BLE001 - see the module
        return []


def _asked(context: typer.Context, ask: "Callable[[], Ask]") -> Iterable[str]:
    from penstock.cli.connect import Wanted  # noqa: PLC0415 - it needs the options of commands
    from penstock.cli.kube.choice import KubeChoice  # noqa: PLC0415 - with it

    before: dict[str, Any] = context.find_root().params
    files = {f"{name}_file": before.get(f"{name}_file") for name in ("ca", "token")}
    files |= {f"{name}_file": before.get(name) for name in ("certificate", "key")}
    choice = (before.get(name) for name in ("namespace", "kube_context", "kubeconfig"))
    wanted = Wanted(
        before.get("cluster"),
        KubeChoice(*choice),
        files=cast("Any", files),
        profile=before.get("profile_name"),
    )
    bootstrap = context.params.get("bootstrap")
    if wanted.means_kubernetes(bootstrap):
        return ()
    where = wanted.locate(bootstrap)
    return _in_time(where.bootstrap, cast("Any", where.options), ask)


def _in_time(bootstrap: str, options: "ClientOptions", ask: "Callable[[], Ask]") -> Iterable[str]:
    """Raises TimeoutError."""
    import asyncio  # noqa: PLC0415 - not for --help

    # grpc, only when it is needed; of the client's modules, only those of this one call.
    from penstock.client.admin.asking import asking_once  # noqa: PLC0415
    from penstock.client.config import ClientConfig  # noqa: PLC0415

    call = ask()

    async def asked() -> Iterable[str]:
        config = ClientConfig(**options)
        async with asyncio.timeout(TIMEOUT_S), asking_once(bootstrap, config) as asking:
            return await call(asking)

    return asyncio.run(asked())

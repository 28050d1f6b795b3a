"""What is in the support bundle of a cluster outside of Kubernetes; `bundle` writes it.

    a local cluster ─▶ its processes, manifest, logs, metrics ─┐
    any brokers     ─▶ what the admin client is told          ─┴──redact──▶ entries

Nothing below the `security` folder of a local cluster is read: that is where its keys and tokens
are. Brokers that do not answer leave lines in errors.txt.
"""

import http.client
import importlib
import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from penstock import __version__
from penstock.cli import cluster, group, log_dirs, topic
from penstock.cli.at_once import (
    SCRUBBED,
    STORED,
    at_once,
    describe_soon,
    logs_at_once,
    scrubs_at_once,
    silence,
)
from penstock.cli.bundle import Entry, attempt, dump
from penstock.cli.connect import Located, open_admin
from penstock.cli.redact import redact_text
from penstock.errors import PenstockError, UnreachableError

if TYPE_CHECKING:
    from penstock.client import Admin

Ids = Sequence[int]
ANSWERED: Final = "cluster.json"
"""In the bundle if a broker has answered."""
LOG_BYTES_MAX: Final = 20 * 1024 * 1024
"""Of the end of each log."""
METRICS_S: Final = 5.0
GROUPS_S: Final = 20.0
"""Until groups are no longer asked: each whose coordinator hangs takes its time."""


def entries(
    where: Located, root: Path | None, tail_lines: int, errors: list[str]
) -> Iterator[Entry]:
    """`root`: the directory of a local cluster, whether it runs or not; None: of none."""
    yield "about.json", dump(_about(where, root))
    if root is not None:
        yield from _local(root, tail_lines, errors)
    yield from _told(where, errors)


def _about(where: Located, root: Path | None) -> dict[str, object]:
    return {
        "bootstrap": where.bootstrap,
        "directory": None if root is None else str(root),
        "taken_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "penstock_cli": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
    }


# ---------------------------------------------------------------- on this machine


def _local(root: Path, tail_lines: int, errors: list[str]) -> Iterator[Entry]:
    state: Any = importlib.import_module("penstock_broker.local.state")
    remote: Any = importlib.import_module("penstock_broker.local.remote")
    directory = state.StateDirectory(root)
    known = directory.read()
    if known is not None:
        yield "local/state.json", dump(asdict(known))
        seen = attempt(lambda: asdict(remote.status(root)), errors)
        yield "local/status.json", dump(seen or {})
    text = attempt(lambda: _end_of(directory.manifest_file, tail_lines), errors)
    if text:
        yield "local/manifest.yaml", redact_text(text)
    for file in attempt(lambda: remote.log_files(root, None), errors) or ():
        text = attempt(partial(_end_of, file, tail_lines), errors)
        if text:
            yield f"logs/{file.name}", redact_text(text)
    processes = known.processes if known is not None else ()
    pages = _attempts([partial(_metrics, one.metrics_address) for one in processes], errors)
    for process, page in zip(processes, pages, strict=True):
        if page:
            yield f"metrics/{process.name}.txt", redact_text(page)


def _end_of(file: Path, lines_max: int) -> str:
    """The last lines of a file, or fewer if they are very long."""
    with file.open("rb") as opened:
        opened.seek(max(0, file.stat().st_size - LOG_BYTES_MAX))
        lines = opened.read(LOG_BYTES_MAX).decode(errors="replace").splitlines(keepends=True)
    return "".join(lines[-lines_max:])


def _metrics(address: str) -> str:
    """Raises UnreachableError."""
    if not address:
        return ""
    connection = http.client.HTTPConnection(address, timeout=METRICS_S)
    try:
        connection.request("GET", "/metrics")
        return connection.getresponse().read().decode(errors="replace")
    except (OSError, http.client.HTTPException) as error:
        raise UnreachableError(f"no metrics from {address}: {error}") from error
    finally:
        connection.close()


# ---------------------------------------------------------------- by its brokers


def _told(where: Located, errors: list[str]) -> Iterator[Entry]:
    try:
        with open_admin(where, only_look=True) as admin:
            seen = describe_soon(admin)
            yield ANSWERED, dump(cluster.to_record(seen))
            alive = [one.broker_id for one in seen.brokers if one.alive]
            asks = [partial(ask, admin, alive, errors) for ask in _QUESTIONS.values()]
            for name, answer in zip(_QUESTIONS, _attempts(asks, errors), strict=True):
                if answer is not None:
                    yield f"{name}.json", dump(answer)
    except PenstockError as error:  # nobody answers: it would be the same for each question
        errors.append(error.message)


def _attempts(asks: Sequence[Callable[[], Any]], errors: list[str]) -> list[Any]:
    """The answers, all asked at the same time; None for each that becomes a line in `errors`."""
    lines: list[list[str]] = [[] for _ in asks]
    found = at_once([partial(attempt, *one) for one in zip(asks, lines, strict=True)])
    errors += chain.from_iterable(lines)
    return found


def _topics(admin: "Admin", _alive: Ids, _errors: list[str]) -> list[dict[str, object]]:
    found = admin.describe_topics().values()
    return [topic.to_record(one, admin.describe_configs(one.topic)) for one in found]


def _log_dirs(admin: "Admin", alive: Ids, errors: list[str]) -> object:
    logs, silent = logs_at_once(admin, alive)
    errors += silence(silent, STORED)
    return log_dirs.to_record(logs, silent)


def _groups(admin: "Admin", _alive: Ids, errors: list[str]) -> list[dict[str, object]]:
    """Those whose coordinators answer, as many as can be asked in time."""
    until, late = monotonic() + GROUPS_S, []

    def ask(group_id: str) -> dict[str, object] | None:
        if monotonic() >= until:
            late.append(group_id)
            return None
        seen = admin.describe_group(group_id)
        return group.to_record(seen, admin.group_lag(seen), {})

    ids = [one.group_id for one in admin.list_groups()]
    found = _attempts([partial(ask, one) for one in ids], errors)
    if late:
        errors.append(
            f"{len(late)} of {len(ids)} groups, such as {min(late)}, were not asked: the others "
            f"took {GROUPS_S:g} s; penstock group describe asks one"
        )
    return [one for one in found if one is not None]


def _broker_configs(admin: "Admin", alive: Ids, errors: list[str]) -> object:
    asks = [partial(admin.describe_broker_configs, [one]) for one in alive]
    return {
        str(broker): {one.name: one.value for one in configs if one.value != one.default}
        for found in _attempts(asks, errors)
        for broker, configs in (found or {}).items()
    }


def _scrub(admin: "Admin", alive: Ids, errors: list[str]) -> object:
    found, silent = scrubs_at_once(admin, alive)
    errors += silence(silent, SCRUBBED)
    return [asdict(one) for one in found]


_QUESTIONS: Final[dict[str, Callable[["Admin", Ids, list[str]], object]]] = {
    "topics": _topics,
    "log-dirs": _log_dirs,
    "groups": _groups,
    "moves": lambda admin, *_: asdict(admin.describe_moves()),
    "blocking-transactions": lambda admin, *_: [
        asdict(one) for one in admin.blocking_transactions()
    ],
    "broker-configs": _broker_configs,
    "scrub": _scrub,
}
"""Each is a file; a broker that refuses one still answers the others. Given: the ids of live
brokers, and where to say what else could not be collected."""

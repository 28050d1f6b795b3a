"""What is in the support bundle of a cluster outside of Kubernetes; `bundle` writes it.

    a local cluster ─▶ its processes, manifest, logs, metrics ─┐
    any brokers     ─▶ what the admin client is told          ─┴──redact──▶ entries

Nothing below the `security` folder of a local cluster is read: that is where its keys and tokens
are. Brokers that do not answer leave lines in errors.txt.
"""

import http.client
import importlib
import platform
from collections.abc import Callable, Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock import __version__
from penstock.cli import cluster, group, log_dirs, topic
from penstock.cli.bundle import Entry, attempt, dump
from penstock.cli.connect import Located
from penstock.cli.redact import redact_text
from penstock.errors import PenstockError, UnreachableError

if TYPE_CHECKING:
    from penstock.client import Admin

LOG_BYTES_MAX: Final = 20 * 1024 * 1024
"""Of the end of each log."""
ANSWER_MS: Final = 5_000
METRICS_S: Final = 5.0


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
    for process in known.processes if known is not None else ():
        text = attempt(partial(_metrics, process.metrics_address), errors)
        if text:
            yield f"metrics/{process.name}.txt", redact_text(text)


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
    from penstock.client import Admin  # noqa: PLC0415 - grpc only when it is needed

    options: Any = {**where.options, "request_timeout_ms": ANSWER_MS}
    try:
        with Admin(where.bootstrap, **options, connect_timeout_ms=ANSWER_MS) as admin:
            seen = admin.describe_cluster()
            yield "cluster.json", dump(cluster.to_record(seen))
            for name, ask in _QUESTIONS.items():
                answer = attempt(partial(ask, admin), errors)
                if answer is not None:
                    yield f"{name}.json", dump(answer)
    except PenstockError as error:  # nobody answers: it would be the same for each question
        errors.append(error.message)


def _topics(admin: "Admin") -> list[dict[str, object]]:
    found = admin.describe_topics().values()
    return [topic.to_record(one, admin.describe_configs(one.topic)) for one in found]


def _groups(admin: "Admin") -> list[dict[str, object]]:
    seen = [admin.describe_group(one.group_id) for one in admin.list_groups()]
    return [group.to_record(one, admin.group_lag(one), {}) for one in seen]


def _moves(admin: "Admin") -> object:
    return asdict(admin.describe_moves())


def _transactions(admin: "Admin") -> object:
    return [asdict(one) for one in admin.blocking_transactions()]


def _broker_configs(admin: "Admin") -> object:
    found = admin.describe_broker_configs()
    return {
        str(broker): {one.name: one.value for one in configs if one.value != one.default}
        for broker, configs in found.items()
    }


_QUESTIONS: Final[dict[str, Callable[["Admin"], object]]] = {
    "topics": _topics,
    "log-dirs": lambda admin: log_dirs.to_record(admin.describe_logs()),
    "groups": _groups,
    "moves": _moves,
    "blocking-transactions": _transactions,
    "broker-configs": _broker_configs,
    "scrub": lambda admin: [asdict(one) for one in admin.describe_scrub()],
}
"""Each is a file; a broker that refuses one still answers the others."""

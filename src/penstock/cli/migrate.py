"""`penstock import` and `penstock export`: topics from Apache Kafka, and back.

    --from/--to kafka://… ─┐
    --topics ──────────────┴▶ Migration.prepare ──▶ table ──▶ execute ──▶ verdicts, groups

With --dry-run nothing is written. Ctrl-C ends the copy where it is; the same command continues.
"""

import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from penstock.cli.connect import check_addresses, locate
from penstock.cli.extras import describe_missing
from penstock.cli.options import Bootstrap, Output, OutputOption, example
from penstock.cli.output import keep_code, print_record
from penstock.cli.usage import WrongUsageError
from penstock.errors import MisuseError, PenstockError

if TYPE_CHECKING:
    from penstock.migration.copying import Copy
    from penstock.migration.groups import Translation
    from penstock.migration.plan import TopicPlan
    from penstock.migration.run import Done, Migration
    from penstock.migration.verifying import Verdict

SCHEME: Final = "kafka://"
PROGRESS_S: Final = 1.0

Topics = Annotated[
    str,
    typer.Option(
        "--topics", metavar="TOPIC[,…]", help="Topics, or patterns with * and ?, by commas."
    ),
]
Groups = Annotated[
    str,
    typer.Option(
        "--groups",
        metavar="GROUP[,…]",
        help="Consumer groups whose committed offsets come along, when the copy has ended.",
    ),
]
Follow = Annotated[
    bool, typer.Option("--follow", help="Go on with new records until Ctrl-C, then finish.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show what would be done.")]
NoVerify = Annotated[
    bool, typer.Option("--no-verify", help="Do not read the copy again to compare it.")
]
NoScan = Annotated[
    bool,
    typer.Option(
        "--no-scan",
        help="Do not read the records first to see whether the target can take each of them.",
    ),
]
KafkaConfig = Annotated[
    Path | None,
    typer.Option(
        "--kafka-config",
        metavar="FILE",
        help="Settings of librdkafka, a line each: security.protocol=SASL_SSL.",
    ),
]


app = typer.Typer()


@dataclass(frozen=True, slots=True)
class _Wish:
    """What both commands are asked for."""

    topics: list[str]
    groups: list[str]
    follow: bool
    dry_run: bool
    scan: bool
    verify: bool
    output: Output


@app.command(
    "import",
    epilog=example(
        "penstock import --from kafka://broker:9092 --topics 'orders*' --dry-run",
        "penstock import --from kafka://broker:9092 --topics orders --groups billing --follow",
    ),
)
def import_topics(
    source: Annotated[
        str, typer.Option("--from", metavar="kafka://HOST:PORT[,…]", help="The Kafka cluster.")
    ],
    topics: Topics,
    groups: Groups = "",
    follow: Follow = False,
    dry_run: DryRun = False,
    no_scan: NoScan = False,
    no_verify: NoVerify = False,
    kafka_config: KafkaConfig = None,
    bootstrap: Bootstrap = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Copy topics from Apache Kafka, partition by partition: keys, values, headers and times.

    Only committed records are copied. The same command again continues where the last one ended;
    no record comes twice. At the end, the copy is read again and compared.
    """
    wish = _Wish(
        _chosen(topics), _listed(groups), follow, dry_run, not no_scan, not no_verify, output
    )
    with _ends(source, kafka_config, bootstrap) as (kafka, own):
        from penstock.migration.run import Migration, settings_here  # noqa: PLC0415

        own.copy_id = f"penstock-import-{kafka.cluster_id}"
        migration = Migration(
            kafka, own, own.check, lambda topic: settings_here(kafka, topic), True
        )
        _migrate(migration, wish)


@app.command(
    "export", epilog=example("penstock export --to kafka://broker:9092 --topics orders --dry-run")
)
def export_topics(
    target: Annotated[
        str, typer.Option("--to", metavar="kafka://HOST:PORT[,…]", help="The Kafka cluster.")
    ],
    topics: Topics,
    groups: Groups = "",
    follow: Follow = False,
    dry_run: DryRun = False,
    no_scan: NoScan = False,
    no_verify: NoVerify = False,
    kafka_config: KafkaConfig = None,
    bootstrap: Bootstrap = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Copy topics to Apache Kafka: the way back; as `penstock import`."""
    wish = _Wish(
        _chosen(topics), _listed(groups), follow, dry_run, not no_scan, not no_verify, output
    )
    with _ends(target, kafka_config, bootstrap) as (kafka, own):
        from penstock.migration.run import Migration, settings_there  # noqa: PLC0415

        kafka.copy_id = f"penstock-export-{own.cluster_id}"
        migration = Migration(own, kafka, kafka.check, settings_there)
        _migrate(migration, wish)


@contextmanager
def _ends(address: str, kafka_config: Path | None, bootstrap: str | None) -> Iterator[Any]:
    if not address.startswith(SCHEME) or not address.removeprefix(SCHEME):
        raise WrongUsageError(
            f"the Kafka cluster is {address!r}; it must be {SCHEME}HOST:PORT[,HOST:PORT…]"
        )
    check_addresses(address.removeprefix(SCHEME))
    try:
        from penstock.migration.kafka import Kafka  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        missing = describe_missing(error, "moving topics from or to Kafka", "kafka")
        if missing is None:
            raise
        raise MisuseError(missing) from None
    from penstock.migration.own import Penstock  # noqa: PLC0415

    settings = _settings(kafka_config)
    located = locate(bootstrap)
    kafka = Kafka(address.removeprefix(SCHEME), settings)
    with Penstock(located.bootstrap, located.options) as own:
        yield kafka, own


def _settings(path: Path | None) -> dict[str, str]:
    if path is None:
        return {}
    try:
        lines = path.read_text().splitlines()
    except OSError as error:
        raise MisuseError(f"--kafka-config: {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise MisuseError(f"--kafka-config: {path} is not text in UTF-8") from None
    settings = {}
    for number, line in enumerate(lines, start=1):
        name, equals, value = (part.strip() for part in line.partition("="))
        if not name or name.startswith("#"):
            continue
        if not equals:
            # Not the line itself: it may be a password.
            raise MisuseError(f"--kafka-config: {path}:{number}: the line is not name=value")
        settings[name] = value
    return settings


def _chosen(topics: str) -> list[str]:
    """Raises WrongUsageError, before any cluster is asked."""
    names = _listed(topics)
    if not names:
        raise WrongUsageError("--topics is empty; name at least one topic or pattern")
    return names


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _migrate(migration: "Migration", wish: _Wish) -> None:
    plans = migration.prepare(wish.topics)
    migration.check_groups(wish.groups, plans)
    if wish.scan:
        plans = migration.scanned(plans, _Counted("looked at"))
    if wish.dry_run:
        with keep_code():
            rows = [_plan_row(plan) for plan in plans]
            print_record({"topics": rows} | _dropped(plans), wish.output)
        if any(plan.reason for plan in plans):
            raise typer.Exit(1)
        return
    progress = _Progress(sum(plan.records for plan in plans))
    with _until_interrupted() as stop:
        done = migration.execute(
            plans,
            follow=wish.follow,
            stop=stop,
            report=progress.copying,
            patterns=wish.topics,
        )
        interrupted = stop()
    progress.copying(done.copy)
    verdicts = done.verify(_Counted("compared")) if wish.verify else []
    if done.complete and _good(verdicts):
        done.release()
    moved, left = _move_groups(done, wish.groups)
    result: dict[str, object] = {
        "complete": done.complete,
        "topics": [_plan_row(plan) for plan in plans],
    }
    if verdicts:
        result["partitions"] = [_verdict_row(each) for each in verdicts]
    if wish.groups:
        result["groups"] = [
            *(_group_row(group, each) for group, each in moved),
            *(_left_row(group, why) for group, why in left.items()),
        ]
    with keep_code():
        print_record(result | _dropped(plans), wish.output)
    if interrupted and not wish.follow and not done.complete and _good(verdicts):
        sys.stderr.write("interrupted; the same command continues\n")
        raise typer.Exit(130)
    reason = _wrong(done, verdicts, moved, left)
    if reason:
        raise MisuseError(reason)


def _good(verdicts: Sequence["Verdict"]) -> bool:
    return all(each.good for each in verdicts)


def _move_groups(
    done: "Done", groups: Sequence[str]
) -> tuple[list[tuple[str, "Translation"]], dict[str, str]]:
    """How far each is now, and why others were not moved, by name: one with members here keeps no
    other from it."""
    moved: list[tuple[str, Translation]] = []
    left: dict[str, str] = {}
    for group in groups:
        try:
            moved += [(group, each) for each in done.move_group(group)]
        except PenstockError as error:
            left[group] = error.message
    return moved, left


def _wrong(
    done: "Done",
    verdicts: Sequence["Verdict"],
    moved: Sequence[tuple[str, "Translation"]],
    left: Mapping[str, str],
) -> str:
    """Why a copy that has ended is not what was asked for, and what to do; ""."""
    if not _good(verdicts):
        return (
            "the copy differs from what was read: see the partitions above; delete those topics "
            "at the target and start over"
        )
    if done.elsewhere:
        return done.elsewhere
    missing = _missing(done, moved)
    if missing:
        return f"copy not complete: {missing}"
    if not left:
        return ""
    reasons = "; ".join(f"{group}: {why}" for group, why in left.items())
    return f"groups were not moved: {reasons}; mend that, then repeat the command"


def _missing(done: "Done", moved: Sequence[tuple[str, "Translation"]]) -> str:
    """What the target does not have, though nothing failed; ""."""
    if done.waiting:
        behind = ", ".join(f"{count} offsets of {w}" for w, count in sorted(done.waiting.items()))
        return f"{behind} wait behind an open transaction; end it, then the same command continues"
    if not done.complete:
        return "the source has records that were not copied yet; the same command continues"
    beyond = ", ".join(f"{group} in {each.where}" for group, each in moved if each.target < 0)
    if beyond:
        return (
            f"groups are further in the source than the copy: {beyond}; see what they read, then "
            "repeat the command"
        )
    return ""


def _plan_row(plan: "TopicPlan") -> dict[str, object]:
    return {
        "topic": plan.wanted.name,
        "partitions": plan.wanted.partitions,
        "replicas": plan.wanted.replicas,
        "records": plan.records,
        "action": plan.action.value,
        "settings": plan.shown,
        "reason": plan.reason,
    }


def _dropped(plans: Sequence["TopicPlan"]) -> dict[str, object]:
    rows = [
        {"topic": plan.wanted.name, "dropped": f"{name}={value}", "because": why}
        for plan in plans
        for name, (value, why) in plan.settings.dropped.items()
    ]
    return {"settings": rows} if rows else {}


def _verdict_row(verdict: "Verdict") -> dict[str, object]:
    return {
        "partition": str(verdict.where),
        "copied": verdict.copied,
        "found": verdict.found,
        "checksum": "same" if verdict.same else "expired" if verdict.expired else "DIFFERS",
    }


def _group_row(group: str, moved: "Translation") -> dict[str, object]:
    return {
        "group": group,
        "partition": str(moved.where),
        "source_offset": moved.source,
        "target_offset": moved.target if moved.target >= 0 else None,
        "left": f"it is at {moved.here} here already" if moved.here >= 0 else "",
    }


def _left_row(group: str, why: str) -> dict[str, object]:
    offsets = dict.fromkeys(("partition", "source_offset", "target_offset"))
    return {"group": group, **offsets, "left": why}


class _Progress:
    """A line per second on standard error. `total`: records to copy, at most."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._began = monotonic()

    def copying(self, copy: "Copy") -> None:
        rate = copy.copied / max(monotonic() - self._began, 0.001)
        of = f" of at most {self._total:,}" if copy.copied <= self._total else ""  # or it follows
        sys.stderr.write(f"copied: {copy.copied:,}{of} records, {rate:,.0f}/s\n")


class _Counted:
    """Records of which something is done, a line per second on standard error."""

    def __init__(self, done: str) -> None:
        self._done = done
        self._records = 0
        self._shown_at = monotonic()

    def __call__(self, records: int) -> None:
        self._records += records
        if monotonic() - self._shown_at >= PROGRESS_S:
            self._shown_at = monotonic()
            sys.stderr.write(f"{self._done}: {self._records:,} records\n")


@contextmanager
def _until_interrupted() -> Iterator[Callable[[], bool]]:
    """The first Ctrl-C ends the copy after what is in flight; the second ends the program."""
    asked: list[int] = []

    def ask(number: int, _: object) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)

    before = signal.getsignal(signal.SIGINT)
    if before is not signal.SIG_IGN:  # as in the background of a script: it is not meant
        signal.signal(signal.SIGINT, ask)
    try:
        yield lambda: bool(asked)
    finally:
        signal.signal(signal.SIGINT, before)

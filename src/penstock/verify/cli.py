"""`penstock verify run` and `penstock verify check`.

Exit codes: 0 PASS, 1 FAIL, 2 wrong usage or an unreachable cluster. Ctrl-C ends the workload early;
what was done until then is checked nevertheless.
"""

import json
import logging
import signal
import tempfile
import threading
import time
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final, NoReturn

import typer
import yaml
from rich.console import Console

from penstock.errors import MisuseError, PenstockError
from penstock.verify.check import check_files
from penstock.verify.history import HistoryWriter
from penstock.verify.records import RECORD_BYTES_MIN, WORD_BYTES
from penstock.verify.report import summary, verdict_lines
from penstock.verify.verdict import Verdict
from penstock.verify.workload import Workload
from penstock.verify.workload_config import WorkloadConfig

PROGRESS_S: Final = 0.25
"""Interval between two checks of the workload."""

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    help="Check that a cluster loses and invents nothing.",
)


class AcksChoice(StrEnum):
    """acks as typed on the command line."""

    none = "none"
    leader = "leader"
    all = "all"


class SyncChoice(StrEnum):
    """sync as typed on the command line."""

    os = "os"
    disk = "disk"


class Output(StrEnum):
    """How results are printed."""

    table = "table"
    json = "json"
    yaml = "yaml"


TransactionsSwitch = Annotated[
    bool, typer.Option("--transactions", help="Write in transactions; some are aborted.")
]
BankSwitch = Annotated[
    bool, typer.Option("--bank", help="Transfer money in transactions; the sum must stay 0.")
]
PipeSwitch = Annotated[
    bool, typer.Option("--pipe", help="Also copy the topic to TOPIC-piped, in transactions.")
]
RingSwitch = Annotated[
    bool, typer.Option("--ring", help="Also pass records round a ring of two topics.")
]


class LiveCounts:
    """Progress of a running workload, printed by the main thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.acknowledged_records = 0
        self.read_records = 0

    def acknowledged(self, records: int) -> None:
        with self._lock:
            self.acknowledged_records += records

    def read(self, records: int) -> None:
        with self._lock:
            self.read_records += records


@app.command(
    epilog="\b\nExample:\n"
    "  penstock verify run --duration 60 --group g --members 5 --history h.gz\n"
    "  penstock verify run --transactions\n"
    "  penstock verify run --bank --producers 8 --duration 60\n"
    "  penstock verify run --pipe --members 3 --churn 5\n"
    "  penstock verify run --ring --rate 1000 --churn 5"
)
def run(
    context: typer.Context,
    bootstrap: Annotated[
        str | None,
        typer.Option(
            envvar="PENSTOCK_BOOTSTRAP",
            help="Any brokers, as host:port,…; default as for every penstock command.",
        ),
    ] = None,
    duration: Annotated[float, typer.Option(help="How long to write, in seconds.", min=0.1)] = 30.0,
    producers: Annotated[int, typer.Option(min=1, max=64, help="Number of writing threads.")] = 2,
    consumers: Annotated[int, typer.Option(min=0, max=64, help="Number of live readers.")] = 1,
    acks: Annotated[AcksChoice, typer.Option(help="Required acknowledgements.")] = AcksChoice.all,
    sync: Annotated[SyncChoice, typer.Option(help="What stored means.")] = SyncChoice.os,
    topic: Annotated[str, typer.Option(help="Created if it does not exist.")] = "penstock-verify",
    partitions: Annotated[int, typer.Option(min=1, help="Of a newly created topic.")] = 6,
    replicas: Annotated[int, typer.Option(min=1, help="Of a newly created topic.")] = 3,
    rate: Annotated[int, typer.Option(min=0, help="Total records/s; 0 = no limit.")] = 5_000,
    record_bytes: Annotated[int, typer.Option(min=RECORD_BYTES_MIN, help="Of each value.")] = 128,
    group: Annotated[
        str, typer.Option(help="Also read as this consumer group; its offsets are reset.")
    ] = "",
    members: Annotated[
        int, typer.Option(min=1, max=64, help="Members of the group, pipe, or each loop of a ring.")
    ] = 3,
    churn: Annotated[float, typer.Option(min=0, help="Seconds a member stays; 0: always.")] = 0.0,
    transactions: TransactionsSwitch = False,
    bank: BankSwitch = False,
    pipe: PipeSwitch = False,
    ring: RingSwitch = False,
    history: Annotated[Path | None, typer.Option(help="Write it here (.gz compresses).")] = None,
    output: Annotated[Output, typer.Option("-o", "--output", help="Output format.")] = Output.table,
) -> None:
    """Run a recorded workload on a cluster, then check its history."""
    from penstock.core.types import Acks, Sync  # noqa: PLC0415 - after --help

    where = context.obj(bootstrap)
    config = WorkloadConfig(
        bootstrap=where.bootstrap,
        options=where.options,
        topic=topic,
        partitions=partitions,
        replication_factor=replicas,
        acks=Acks[acks.name.upper()],
        sync=Sync[sync.name.upper()],
        producers=producers,
        consumers=consumers,
        record_bytes=record_bytes // WORD_BYTES * WORD_BYTES,
        rate=rate,
        group=group,
        members=members,
        churn_s=churn,
        transactions=transactions,
        bank=bank,
        pipe=pipe,
        ring=ring,
    )
    _judged(config, history, duration, output)


@app.command(epilog="\b\nExample:\n  penstock verify check history.gz -o json")
def check(
    files: Annotated[list[Path], typer.Argument(metavar="FILE…", help="History files of one run.")],
    output: Annotated[Output, typer.Option("-o", "--output", help="Output format.")] = Output.table,
) -> None:
    """Check recorded histories."""
    try:
        verdict = check_files(files)
    except MisuseError as error:
        _complain(error)
    _show(verdict, output)


def _judged(
    config: WorkloadConfig, history: Path | None, duration_s: float, output: Output
) -> NoReturn:
    """Runs the workload, shows the verdict, exits."""
    with tempfile.TemporaryDirectory(prefix="penstock-verify-") as scratch:
        path = history or Path(scratch) / "history.jsonl"
        try:
            _run_workload(config, path, duration_s)
            verdict = check_files([path])
        except (PenstockError, OSError) as error:
            _complain(error)
    _show(verdict, output)


def _run_workload(config: WorkloadConfig, path: Path, duration_s: float) -> None:
    """Runs until the time is up or Ctrl-C, with a line of progress on stderr.

    The first Ctrl-C ends the writing, and what was done is checked; a second one gives up. Both
    only set events: an exception from a signal handler could interrupt anything.
    """
    counts, interrupted, given_up = LiveCounts(), threading.Event(), threading.Event()
    progress = Console(stderr=True)
    # The history has every failed delivery; a line for each would bury the verdict.
    logging.getLogger("penstock.client").setLevel(logging.ERROR)
    with HistoryWriter(path) as writer:
        workload = Workload(config, writer, counts)
        workload.start()
        before = signal.signal(
            signal.SIGINT, lambda *_: (given_up if interrupted.is_set() else interrupted).set()
        )
        try:
            with progress.status("starting") as status:
                began = time.monotonic()
                while (elapsed := time.monotonic() - began) < duration_s:
                    status.update(
                        f"{elapsed:4.0f} of {duration_s:.0f} s · acknowledged "
                        f"{counts.acknowledged_records:,} · read {counts.read_records:,}"
                    )
                    if interrupted.wait(PROGRESS_S):
                        break
                status.update("reading everything back")
                if interrupted.is_set():
                    progress.print(
                        "interrupted: checking what was done; press Ctrl-C again to give up"
                    )
                _finish(workload, given_up)
        finally:
            signal.signal(signal.SIGINT, before)


def _finish(workload: Workload, given_up: threading.Event) -> None:
    """Lets the workload end cleanly; exits with 130 when the user gives up."""
    stopping = threading.Thread(target=workload.stop, name="verify-stop", daemon=True)
    stopping.start()
    while stopping.is_alive():
        stopping.join(PROGRESS_S)
        if given_up.is_set():
            workload.abandon()
            raise typer.Exit(130)


def _show(verdict: Verdict, output: Output) -> NoReturn:
    if output is Output.json:
        lines = [json.dumps(verdict.to_dict())]
    elif output is Output.yaml:
        plain = json.loads(json.dumps(verdict.to_dict()))
        lines = [yaml.safe_dump(plain, sort_keys=False, allow_unicode=True).rstrip()]
    else:
        figures = summary(verdict)
        width = max(len(label) for label, _ in figures)
        lines = [_coloured(line) for line in verdict_lines(verdict)]
        lines += ["", *(f"{label:<{width}}  {text}" for label, text in figures)]
    with suppress(BrokenPipeError):  # of `| head -1`: the exit code counts
        typer.echo("\n".join(lines))
    raise typer.Exit(0 if verdict.passed else 1)


def _coloured(line: str) -> str:
    """On a terminal; elsewhere `echo` leaves the colour out."""
    colours = {"PASS": "green", "FAIL": "red"}
    colour = colours.get(line[:4])
    return typer.style(line, fg=colour, bold=True) if colour else line


def _complain(error: Exception) -> NoReturn:
    typer.echo(f"penstock: {error}", err=True)
    raise typer.Exit(2)

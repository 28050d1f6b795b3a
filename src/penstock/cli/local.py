"""`penstock local …`: a cluster on this machine, from the manifest kubectl would apply.

Only the command line is here: `penstock_broker.local` does the work, and is loaded when a command
runs.
"""

import shlex
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from penstock.cli.changes import check_output, confirm, print_change
from penstock.cli.extras import load_broker_module
from penstock.cli.options import (
    DryRun,
    Output,
    OutputOption,
    Yes,
    directory,
    duration_ms,
    example,
    given_not_empty,
    new_file,
)
from penstock.cli.output import keep_code, print_record, print_rows
from penstock.cli.usage import typed

app = typer.Typer(help="Run a cluster on this machine.", no_args_is_help=True)

DEFAULT_PORT: Final = 9092
FOLLOW_EVERY_S: Final = 0.2
TOKEN_MS: Final = 3_600_000
Cluster = Annotated[
    str | None,
    typer.Option(
        "--cluster", callback=given_not_empty, help="Name of the Cluster, if there are several."
    ),
]
DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        help="Directory for data, logs and state. Without it: "
        "$XDG_STATE_HOME/penstock/local/<cluster> (in ~/.local/state if not set).",
        parser=directory,
        metavar="DIRECTORY",
    ),
]

Manifest = Annotated[
    str | None,
    typer.Option(
        "--file",
        "-f",
        callback=given_not_empty,
        metavar="FILE",
        help="Manifest with a Cluster and its Topics; - = stdin. Without it: what the cluster was "
        "last started with, else three brokers, three replicas of each topic.",
    ),
]


def _load(name: str) -> Any:
    return load_broker_module(f"local.{name}", "`penstock local`")


def _usable_port(port: int | None) -> int | None:
    if port and port < (lowest := _load("ports").PORT_MIN):
        raise typer.BadParameter(f"it is {port}; it must be {lowest} or more, or 0")
    return port


def _find_root(cluster: str | None, data_dir: Path | None, *, stopped: bool = False) -> Path:
    root: Path = _load("registry").find_root(cluster, data_dir, stopped=stopped)
    return root


def _progress(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


@app.command(
    epilog=example(
        "penstock local up",
        "penstock local up -f examples/flights/cluster.yaml --detach --port 0",
        "penstock local up -f examples/flights/cluster.yaml --secure",
    )
)
def up(
    *,
    manifest: Manifest = None,
    cluster: Cluster = None,
    data_dir: DataDir = None,
    port: Annotated[
        int | None,
        typer.Option(
            help="Broker i listens on PORT + i, the controller on PORT - 1, metrics on ports "
            f"100 higher; 0 = any free ports. Without it: {DEFAULT_PORT}.",
            min=0,
            max=65_535,
            callback=_usable_port,
        ),
    ] = None,
    detach: Annotated[
        bool,
        typer.Option(
            "--detach", "-d", help="Return when the cluster is running; `local down` stops it."
        ),
    ] = False,
    secure: Annotated[
        bool,
        typer.Option(
            "--secure", help="With TLS, tokens and rules, as on Kubernetes; made with the first up."
        ),
    ] = False,
    dry_run: DryRun = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Start a cluster and create its topics; if it is running, apply what has changed.

    Without a manifest, the cluster is called "local", or as --cluster says.

    In the foreground, Ctrl-C stops everything and leaves nothing running. A process that crashes is
    restarted.
    """
    foreground = _load("foreground")
    request = foreground.UpRequest(
        manifest, cluster, data_dir, DEFAULT_PORT if port is None else port,
        secure=secure, dry_run=dry_run,
    )  # fmt: skip
    local_up = foreground.LocalUp(request, _progress)
    state = local_up.running()
    if state is not None and port:
        local_up.check_port(state, port)
    if dry_run:
        _show_plan(local_up, state, output)
    elif state is not None:
        changes = local_up.apply_to_running(state)
        for line in changes:
            _progress(line)
        rest = "" if changes else "; nothing to change"
        _say_running(local_up, (state.cluster, state.bootstrap), rest, output)
    else:
        _start(local_up, output, detach=detach)


def _start(local_up: Any, output: Output, *, detach: bool) -> None:
    def say(running: Any) -> None:
        named = (running.cluster.name, running.bootstrap)
        _say_running(local_up, named, "; Ctrl-C stops it", output)

    if not detach:
        local_up.run(say)
        return
    state = local_up.detach()
    rest = f"; stop it with {local_up.stop_command()}"
    _say_running(local_up, (state.cluster, state.bootstrap), rest, output)


def _show_plan(local_up: Any, state: Any, output: Output) -> None:
    changes = local_up.plan() if state is None else local_up.apply_to_running(state)
    name = local_up.cluster.name
    verb = "would start" if state is None else "would change"
    said = [f"cluster {name} {verb}:", *(f"  {line}" for line in changes)]
    if not changes:
        said = [f"cluster {name} is running; nothing to change"]
    record = {"cluster": name, "running": state is not None, "changes": changes}
    print_change("\n".join(said), record, output, dry_run=True)


def _say_how_to_log_in(directory: Any) -> None:
    files = directory.client_files
    if files["ca_file"]:
        ca, token = shlex.quote(files["ca_file"]), shlex.quote(files["token_file"])
        typer.echo("as its administrator, with --bootstrap or from your programs:")
        typer.echo(f"  export PENSTOCK_CA_FILE={ca} PENSTOCK_TOKEN_FILE={token}")


@app.command(
    epilog=example(
        "penstock local token spark --out spark.token", "penstock local token spark --for 10m"
    )
)
def token(
    *,
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Whose: the principal serviceaccount:local/NAME.")
    ],
    valid_for: Annotated[
        int | None,
        typer.Option(
            "--for",
            parser=duration_ms,
            metavar="DURATION",
            help="How long it counts: 90s, 10m, 24h. Without it: 1h.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="Write it to this file, which only you can read.",
            parser=new_file,
            metavar="FILE",
        ),
    ] = None,
    cluster: Cluster = None,
    data_dir: DataDir = None,
) -> None:
    """Make a token of any user of a cluster that was started with --secure."""
    security = _load("security")
    valid_ms = TOKEN_MS if valid_for is None else valid_for
    with typed():
        security.check_token(name, valid_ms / 1000)
    root = _find_root(cluster, data_dir)
    made = security.token_of(root, name, valid_ms / 1000)
    if out is None:
        typer.echo(made)
    else:
        security.write_token(out, made)


@app.command(
    epilog=example(
        "penstock local certificate ada",
        "penstock local certificate ada --out ~/.penstock --days 90 -o json",
    )
)
def certificate(
    *,
    user: Annotated[str, typer.Argument(metavar="USER", help="Whose: the principal cert:USER.")],
    out: Annotated[
        Path,
        typer.Option(
            "--out", help="Folder of USER.crt and USER.key.", parser=directory, metavar="DIRECTORY"
        ),
    ] = Path(),
    days: Annotated[int, typer.Option("--days", min=1, max=365, help="How long it counts.")] = 30,
    cluster: Cluster = None,
    data_dir: DataDir = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Make a user's client certificate, for a cluster that was started with --secure.

    Certificates are shown at a port of their own, and need no token. What the user may do is said
    by rules: `penstock acl --help`.
    """
    security = _load("security")
    with typed():
        security.check_user(user)
    root = _find_root(cluster, data_dir)
    made = security.write_certificate(root, user, days, out)
    record = {
        "principal": made.principal,
        "expires": f"{made.ends:%Y-%m-%dT%H:%M:%SZ}",
        "certificate_file": str(made.certificate_file),
        "key_file": str(made.key_file),
        "ca_file": str(made.ca_file),
        "bootstrap": made.bootstrap,
    }
    print_record(record, output)
    if output is Output.TABLE:
        files = (("ca-file", made.ca_file), ("cert", made.certificate_file), ("key", made.key_file))
        options = " ".join(f"--{name} {shlex.quote(str(path))}" for name, path in files)
        typer.echo(f"\npenstock {options} topic list --bootstrap {made.bootstrap}")


def _say_running(local_up: Any, named: tuple[str, str], rest: str, output: Output) -> None:
    """Of the cluster with this name and these addresses."""
    cluster, bootstrap = named
    files = local_up.directory.client_files
    record = {"cluster": cluster, "bootstrap": bootstrap, **files}
    print_change(f"cluster {cluster} is running on {bootstrap}{rest}", record, output)
    if output is Output.TABLE:
        _say_how_to_log_in(local_up.directory)
    sys.stdout.flush()


@app.command("list", epilog=example("penstock local list", "penstock local list -o json"))
def list_(*, output: OutputOption = Output.TABLE) -> None:
    """List the clusters that are running on this machine, wherever their data is.

    Phase "down" means that the cluster was killed and left nothing running.
    """
    print_rows(_load("remote").listed(), output, empty="no local cluster is running")


@app.command(epilog=example("penstock local status", "penstock local status -o json"))
def status(
    *, cluster: Cluster = None, data_dir: DataDir = None, output: OutputOption = Output.TABLE
) -> None:
    """Show each process, whether it is up and what it leads, and what the cluster lacks.

    Exit code 1 if anything is down or under-replicated.
    """
    if not show_status(_find_root(cluster, data_dir), output):
        raise typer.Exit(1)


def show_status(root: Path, output: Output) -> bool:
    """Prints how the cluster in this directory is; whether it is healthy."""
    seen = _load("remote").status(root)
    document = asdict(seen)
    processes = document.pop("processes")
    for process in processes:
        process["up"] = process.pop("is_up")
    order = ("name", "up", "pid", "address", "leads", "replicas", "restarts", "metrics_address")
    rows = [{key: process[key] for key in order} for process in processes]
    with keep_code():
        print_record({**document, "healthy": seen.is_healthy, "processes": rows}, output)
    return bool(seen.is_healthy)


@app.command(
    epilog=example(
        "penstock local down",
        "penstock local down --data-dir /tmp/flights",
        "penstock local down --purge --yes",
    )
)
def down(
    *,
    cluster: Cluster = None,
    data_dir: DataDir = None,
    purge: Annotated[bool, typer.Option("--purge", help="Also remove all records.")] = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Stop the cluster. Its records are back after the next `up`, unless purged."""
    if purge:
        check_output(output, yes=yes, dry_run=dry_run)
    root = _find_root(cluster, data_dir, stopped=purge)
    directory = _load("state").StateDirectory(root)
    if purge:
        _load("manifest_file").refuse_protected(directory.manifest_file)
    if purge and not dry_run:
        confirm(f"Remove all records of the cluster in {root}?", yes=yes)
    stopped: str | None = None
    if directory.read() is not None or not purge:
        stopped = _load("remote").down(root, dry_run=dry_run)
    if purge and dry_run:
        directory.check_ours()
    elif purge:
        directory.purge()
    could = "could be " if dry_run else ""
    said = [f"cluster {stopped} {could}stopped"] if stopped is not None else []
    said += [f"{root}: records {could}removed"] if purge else []
    record = {"stopped": stopped, "directory": str(root), "purged": purge}
    print_change("\n".join(said), record, output, dry_run=dry_run)


@app.command(epilog=example("penstock local logs broker-0", "penstock local logs controller -f"))
def logs(
    *,
    process: Annotated[
        str | None,
        typer.Argument(
            metavar="PROCESS", help="controller, broker-0, …; without it, all processes."
        ),
    ] = None,
    cluster: Cluster = None,
    data_dir: DataDir = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for new lines.")] = False,
) -> None:
    """Print what the processes logged: a JSON object per line."""
    root = _find_root(cluster, data_dir)
    files = _load("remote").log_files(root, process)
    several = len(files) > 1
    opened = [(file.stem, file.open(errors="replace")) for file in files]
    while True:
        for name, log in opened:
            for line in log:
                sys.stdout.write(f"{name}: {line}" if several else line)
        sys.stdout.flush()
        if not follow:
            return
        time.sleep(FOLLOW_EVERY_S)

"""`penstock profile …`: clusters by name."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli import profiles
from penstock.cli.changes import print_change
from penstock.cli.connect import check_addresses
from penstock.cli.options import (
    CaFile,
    CertificateFile,
    DryRun,
    KeyFile,
    Output,
    OutputOption,
    TokenFile,
    example,
)
from penstock.cli.output import print_rows
from penstock.cli.profiles import Profile, Profiles

app = typer.Typer(help="Name clusters, with what to trust and to show there.", no_args_is_help=True)
Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the profile.")]


@app.command(
    "set",
    epilog=example(
        "penstock profile set production --bootstrap broker.example.com:9092 \\",
        "      --ca-file ca.crt --token-file ada.token --use",
        "penstock profile set air --cluster air/flights --context admin@air",
    ),
)
def set_(
    name: Name,
    *,
    bootstrap: Annotated[
        str | None, typer.Option("--bootstrap", metavar="HOST:PORT[,…]", help="Any brokers.")
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option("--cluster", metavar="[NS/]NAME", help="A Cluster on Kubernetes."),
    ] = None,
    namespace: Annotated[str | None, typer.Option("--namespace", "-n", help="Of it.")] = None,
    context: Annotated[str | None, typer.Option(help="Context of the kubeconfig.")] = None,
    kubeconfig: Annotated[str | None, typer.Option(help="Kubeconfig file.")] = None,
    ca_file: CaFile = None,
    token_file: TokenFile = None,
    certificate: CertificateFile = None,
    key: KeyFile = None,
    use: Annotated[bool, typer.Option("--use", help="Make it the current one, too.")] = False,
    dry_run: DryRun = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Make a profile, or replace the one of that name."""
    profiles.check_name(name)
    if bootstrap:
        check_addresses(bootstrap)
    made = Profile(
        bootstrap=bootstrap,
        cluster=cluster,
        namespace=namespace,
        context=context,
        kubeconfig=_absolute(kubeconfig),
        ca_file=_absolute(ca_file),
        token_file=_absolute(token_file),
        certificate_file=_absolute(certificate),
        key_file=_absolute(key),
    )
    before = profiles.load()
    current = name if use else before.current
    verb = "could be" if dry_run else "is"
    also = f", and {'would be' if dry_run else 'is'} the current one" if current == name else ""
    after = Profiles({**before.by_name, name: made}, current)
    _save(f"profile {name} {verb} set{also}", after, output, dry_run=dry_run)


@app.command("list", epilog=example("penstock profile list", "penstock profile list -o json"))
def list_(*, output: OutputOption = Output.TABLE) -> None:
    """List profiles."""
    found = profiles.load()
    rows = [
        {"name": name, "current": name == found.current, **_shown(one)}
        for name, one in sorted(found.by_name.items())
    ]
    print_rows(rows, output, empty="there are no profiles")


@app.command(epilog=example("penstock profile use production"))
def use(name: Name, *, dry_run: DryRun = False, output: OutputOption = Output.TABLE) -> None:
    """Make a profile the current one: that of commands that name no cluster.

    `kubectl penstock` takes it only by --profile, because it means a Cluster of its context.
    """
    found = profiles.load()
    found.get(name)
    said = f"profile {name} {'would be' if dry_run else 'is'} the current one"
    _save(said, replace(found, current=name), output, dry_run=dry_run)


@app.command(epilog=example("penstock profile clear"))
def clear(*, dry_run: DryRun = False, output: OutputOption = Output.TABLE) -> None:
    """Have no current profile: commands find a cluster as without profiles."""
    said = f"no profile {'would be' if dry_run else 'is'} the current one"
    _save(said, replace(profiles.load(), current=None), output, dry_run=dry_run)


@app.command(epilog=example("penstock profile remove production"))
def remove(name: Name, *, dry_run: DryRun = False, output: OutputOption = Output.TABLE) -> None:
    """Remove a profile. Nothing else is touched: neither the cluster nor the files it names."""
    found = profiles.load()
    found.get(name)
    left = {known: one for known, one in found.by_name.items() if known != name}
    after = Profiles(left, None if found.current == name else found.current)
    said = f"profile {name} {'could be' if dry_run else 'is'} removed"
    _save(said, after, output, dry_run=dry_run)


def _save(said: str, after: Profiles, output: Output, *, dry_run: bool) -> None:
    if not dry_run:
        profiles.save(after)
    record = {"current": after.current, "profiles": sorted(after.by_name)}
    print_change(said, record, output, dry_run=dry_run)


def _absolute(path: str | None) -> str | None:
    """The command may be run in another directory next time; "" stays, which is refused."""
    return str(Path(path).expanduser().absolute()) if path else path


def _shown(profile: Profile) -> dict[str, object]:
    login = [
        name for name in ("ca_file", "token_file", "certificate_file") if name in profile.given
    ]
    return {
        "address": profile.bootstrap or f"Cluster {profile.cluster}",
        "context": profile.context,
        "files": login,
    }

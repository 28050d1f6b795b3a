"""Entry point: assembles the commands, and turns every failure into one line and an exit code.

    argv ──▶ typer ──▶ command ──▶ output on stdout
                          └─ raises ──▶ PenstockGroup: `penstock: what went wrong` on stderr

Exit codes: 0 done, 1 failed, 2 wrong usage (`usage.py`), 130 interrupted. A closed pipe
(`| head`) ends the program quietly with 0, unless its code says how things are (`keep_code`).
A new group of commands is added to `_assemble` and a panel of `panels.py`; one that lives in
another package is an `Elsewhere`.
"""

import codecs
import importlib
import io
import os
import signal
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, Final, TextIO

import typer
from typer.core import TyperGroup
from typer.exceptions import TyperException

from penstock import __version__
from penstock.cli import (
    acl,
    broker,
    cluster,
    consume,
    dump_log,
    elect,
    group,
    local,
    log_dirs,
    migrate,
    offsets,
    partitions,
    perf,
    produce,
    profile,
    quota,
    report,
    scrub,
    status,
    top,
    topic,
    txn,
    ui,
    usage,
    version,
    why,
)
from penstock.cli.connect import WANTED, Wanted, locate
from penstock.cli.extras import describe_missing
from penstock.cli.kube import commands as kube
from penstock.cli.kube import rest as kube_rest
from penstock.cli.kube.choice import KubeChoice
from penstock.cli.metavars import name_values
from penstock.cli.options import CaFile, CertificateFile, KeyFile, TokenFile
from penstock.cli.panels import PANELS
from penstock.errors import MisuseError, PenstockError

PLUGIN: Final = "kubectl penstock"


class Elsewhere(TyperGroup):
    """A group of another package: listed by name and help, imported when it is used.

    The extra that it needs beside `cli` has its name.
    """

    def __init__(self, name: str, module: str, text: str) -> None:
        super().__init__(name=name, help=text)
        self._module = module

    def load(self) -> Any:
        """The group itself. Raises MisuseError that says what to install."""
        try:
            module = importlib.import_module(self._module)
        except ModuleNotFoundError as error:
            message = describe_missing(error, f"`penstock {self.name}`", f"cli,{self.name}")
            if message is None:
                raise
            raise MisuseError(message) from error
        group = typer.main.get_command(module.app)
        name_values(group)
        return group

    def make_context(self, *args: Any, **options: Any) -> Any:
        return self.load().make_context(*args, **options)


class PenstockGroup(TyperGroup):
    """The top-level group: commands of this and other packages; reports failures."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.add_command(
            Elsewhere("verify", "penstock.verify.cli", "Check that a cluster loses nothing.")
        )
        name_values(self)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - typer's
        """In panels, whose second columns begin at one place."""
        widest = max(map(len, self.commands))
        for panel, names in PANELS.items():
            width = formatter.width - 6 - widest
            rows = [(name, self.commands[name].get_short_help_str(width)) for name in names]
            with formatter.section(panel):
                formatter.write_dl(rows, col_spacing=2 + widest - max(map(len, names)))

    def main(self, *args: Any, **extra: Any) -> Any:
        """Exits with the code of the command. Wrong usage is told in one line."""
        try:
            code = super().main(*args, **{**extra, "standalone_mode": False})
        except TyperException as error:
            if usage.is_help(error):  # a group without a command
                sys.stderr.write(error.format_message() + "\n")
            else:
                _complain(usage.describe(error))
            sys.exit(error.exit_code)
        except typer.Abort:
            _complain("not done, because it was not confirmed")
            sys.exit(1)
        except OSError as error:  # the help could not be written: that is before `invoke`
            _complain(_describe(error))
            sys.exit(1)
        sys.exit(code or 0)

    def invoke(self, ctx: Any) -> Any:
        if sys.stdout is None:  # `>&-`: the next file that is opened would become it
            _complain("standard output is closed; to discard the output, use >/dev/null")
            raise typer.Exit(1)
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            _give_up_stdout()
            raise typer.Exit(0) from None
        except typer.Exit:
            _flush()  # the code says how things are, and counts though nobody reads the rest
            raise
        except (typer.Abort, TyperException):
            raise  # wrong usage and the like: `main` reports it
        except Exception as error:
            if ctx.params.get("debug"):
                raise
            _complain(_describe(error))
            raise typer.Exit(_exit_code(error)) from None
        else:
            return result


def _exit_code(error: Exception) -> int:
    return 2 if isinstance(error, usage.WrongUsageError) else 1


def _describe(error: Exception) -> str:
    if isinstance(error, PenstockError):
        return error.message
    if isinstance(error, OSError):
        said = error.strerror or str(error)
        return f"{error.filename}: {said}" if error.filename else said
    if isinstance(error, UnicodeEncodeError) and error.reason == "surrogates not allowed":
        return f"an argument is not valid UTF-8: {os.fsencode(error.object)!r}"
    if isinstance(error, ModuleNotFoundError):
        message = describe_missing(error, "this command", "cli")
        if message is not None:
            return message
    return (
        f"internal error, {type(error).__name__}: {error}; this is a defect in penstock: please "
        "report it with the output of `penstock --debug …`"
    )


def _complain(message: str) -> None:
    for line in message.splitlines() or [""]:
        sys.stderr.write(f"penstock: {line}\n")


def _flush() -> None:
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _give_up_stdout()


def _give_up_stdout() -> None:
    """The reader has closed the pipe: buffered output must not fail again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _print_version(value: bool) -> None:
    if value:
        typer.echo(f"penstock {__version__}")
        raise typer.Exit


_program: Final = typer.Typer(
    cls=PenstockGroup,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


@_program.callback()
def _options(
    context: typer.Context,
    *,
    cluster: Annotated[
        str | None,
        typer.Option(
            "--cluster",
            envvar="PENSTOCK_CLUSTER",
            metavar="[NS/]NAME",
            help="A Cluster on Kubernetes, reached by port-forward.",
        ),
    ] = None,
    profile_name: Annotated[
        str | None,
        typer.Option(
            "--profile",
            envvar="PENSTOCK_PROFILE",
            metavar="NAME",
            help="A cluster by the name that `penstock profile set` gave it. Without it: the "
            "current profile, unless another option names a cluster.",
        ),
    ] = None,
    namespace: kube.Namespace = None,
    kube_context: kube.Context = None,
    kubeconfig: kube.Kubeconfig = None,
    ca_file: CaFile = None,
    token_file: TokenFile = None,
    certificate: CertificateFile = None,
    key: KeyFile = None,
    debug: Annotated[
        bool, typer.Option("--debug", envvar="PENSTOCK_DEBUG", help="Show tracebacks of failures.")
    ] = False,
    print_version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Topics, partitions and replicas over gRPC. To start: `penstock local up --help`."""
    del debug, print_version  # read by PenstockGroup and _print_version
    wanted = Wanted(
        cluster,
        KubeChoice(namespace, kube_context, kubeconfig),
        is_plugin=context.info_name == PLUGIN,
        files={
            "ca_file": ca_file,
            "token_file": token_file,
            "certificate_file": certificate,
            "key_file": key,
        },
        profile=profile_name,
    )
    WANTED.set(wanted)
    context.obj = locate  # for commands of packages that may not import this one


def _assemble() -> typer.Typer:
    app = _program
    app.add_typer(local.app, name="local")
    app.add_typer(cluster.app, name="cluster")
    app.add_typer(topic.app, name="topic")
    app.add_typer(partitions.app, name="partitions")
    app.add_typer(broker.app, name="broker")
    app.add_typer(scrub.app, name="scrub")
    app.add_typer(group.app, name="group")
    app.add_typer(txn.app, name="txn")
    app.add_typer(acl.app, name="acl")
    app.add_typer(quota.app, name="quota")
    app.add_typer(profile.app, name="profile")
    for module in (
        status, why, report, produce, consume, offsets, elect, log_dirs, dump_log, kube, kube_rest,
        top, ui, version,
    ):  # fmt: skip
        module.register(app)
    app.add_typer(perf.app, name="perf")
    app.add_typer(migrate.app)
    return app


app = _assemble()


def _write_utf8(stream: TextIO | None) -> None:
    """Whatever the locale: other command-line programs do, and records are not ASCII."""
    if isinstance(stream, io.TextIOWrapper) and codecs.lookup(stream.encoding).name != "utf-8":
        stream.reconfigure(encoding="utf-8", errors=stream.errors)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Ends the command with KeyboardInterrupt, wherever it is."""
    # If a client call is stopped before its coroutine started, that is not a defect to warn about.
    warnings.filterwarnings("ignore", r"coroutine .* was never awaited", RuntimeWarning)
    signal.default_int_handler(number, frame)


def main(argv: Sequence[str] | None = None) -> None:
    """Runs one command and exits with its code."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # its C core would write to standard error
    # A container is stopped by SIGTERM, which its first process would otherwise ignore: commands
    # end as by Ctrl-C, so that a consumer leaves its group and a producer writes what it has. So
    # they do when their terminal is closed, and no token stays behind; nohup ignores that.
    signal.signal(signal.SIGTERM, _interrupt)
    for number in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(number, _interrupt)
    for stream in (sys.stdout, sys.stderr):
        _write_utf8(stream)
    program = PLUGIN if Path(sys.argv[0]).name.startswith("kubectl") else "penstock"
    try:
        app(args=argv, prog_name=program)
    except KeyboardInterrupt:  # typer handles it once the tree of commands is built
        sys.exit(130)


if __name__ == "__main__":
    main()

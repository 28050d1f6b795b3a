"""`penstock ui`: the console in a browser, on this machine only."""

import importlib
import sys
import traceback
import webbrowser
from functools import partial
from threading import Thread
from typing import Annotated, Any, Final

import typer

from penstock.cli.connect import Located, locate
from penstock.cli.extras import describe_missing
from penstock.cli.options import Bootstrap, example
from penstock.errors import MisuseError

PORT: Final = 8642


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command(epilog=example("penstock ui", "kubectl penstock ui --no-browser"))(ui)


def ui(
    context: typer.Context,
    *,
    port: Annotated[
        int, typer.Option(min=0, max=65_535, help="Port on 127.0.0.1; 0 = any that is free.")
    ] = PORT,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")
    ] = True,
    bootstrap: Bootstrap = None,
) -> None:
    """Show the cluster in a browser: topics, records, groups, transactions. Changes nothing.

    Listens on 127.0.0.1 only. The link that is printed lets one browser in, once; after it was
    used, the next one is printed. On Kubernetes the brokers are reached by port-forward, with your
    own permissions. Ctrl-C ends it.
    """
    server = _server()
    report = partial(_report, debug=bool(context.find_root().params.get("debug")))
    where = locate(bootstrap)
    listener = server.listen(port)
    opened = not browser

    def announce(url: str) -> None:
        nonlocal opened
        if opened:
            _print_link(url)
            return
        opened = True
        # A browser of the terminal ends only after it has its page, which this thread serves.
        Thread(target=_open, args=(url,), daemon=True).start()

    with listener:
        sys.stderr.write(f"console of {_name(where)}, until Ctrl-C\n")
        server.serve(listener, _name(where), announce, report, where.bootstrap, **where.options)


def _open(url: str) -> None:
    if not webbrowser.open(url):
        _print_link(url)


def _print_link(url: str) -> None:
    sys.stderr.write(f"open in a browser (counts once): {url}\n")


def _name(where: Located) -> str:
    return where.reached.name if where.reached is not None else where.bootstrap


def _report(path: str, error: Exception, *, debug: bool) -> None:
    """A page failed by a defect: one line, and the trace with --debug."""
    sys.stderr.write(
        f"penstock: the page {path} failed, {type(error).__name__}: {error}; this is a defect in "
        "penstock: please report it with the output of `penstock --debug ui`\n"
    )
    if debug:
        traceback.print_exception(error)


def _server() -> Any:
    """Loaded when the command runs: most installations do without it."""
    try:
        return importlib.import_module("penstock.ui.server")
    except ModuleNotFoundError as error:
        raise MisuseError(describe_missing(error, "penstock ui", "ui") or str(error)) from error

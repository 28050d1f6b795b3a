"""`python -m e2e`, and `make e2e`: scenarios on a real Kubernetes, a table, exit code 1 on failure.

Two lists: all scenarios, played before a release, with `--record`; and `--short`, played by CI,
those that a release must not be without and that are over soon.

A cluster that is there already is used and stays; one that was made for this run is removed
at its end by `e2e/cluster/down`, as README.md shows it, unless `--keep`. What was compiled and the
images stay for the next run.
"""

import argparse
import fcntl
import signal
import sys
from collections.abc import Sequence
from typing import TextIO

from e2e import scenarios  # noqa: F401 - registers them
from e2e.harness import report
from e2e.harness.process import ROOT, E2EError, NoClusterError, cache, kubeconfig, stream
from e2e.harness.report import Result
from e2e.harness.runner import Runner, say
from e2e.harness.scenario import REGISTRY, SOAK_MINUTES, Scenario


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m e2e", description=__doc__)
    parser.add_argument(
        "--only", action="append", metavar="NAME", choices=list(REGISTRY),
        help="play this scenario; may be repeated",
    )  # fmt: skip
    parser.add_argument("--list", action="store_true", help="list the scenarios")
    parser.add_argument("--short", action="store_true", help="only those of the short list")
    parser.add_argument("--keep", action="store_true", help="leave the cluster running")
    parser.add_argument(
        "--minutes", type=float, metavar="N",
        help="begin no scenario after N minutes; then it is no failure if there is no cluster",
    )  # fmt: skip
    parser.add_argument(
        "--soak", type=float, metavar="N",
        help="minutes that Spark writes exactly once; 30 without it, with --short as few as it can",
    )  # fmt: skip
    parser.add_argument(
        "--shared", action="store_true",
        help="this machine is not ours alone: only show limits, play once more what failed",
    )  # fmt: skip
    parser.add_argument(
        "--plaintext", action="store_true", help="with Clusters of security mode Disabled"
    )
    parser.add_argument("--no-build", action="store_true", help="the images as they are")
    parser.add_argument(
        "--record", action="store_true",
        help="renew the rows of docs/e2e-results.md that are played; not with less than is shipped",
    )  # fmt: skip
    args = parser.parse_args(argv)
    less = args.plaintext or args.no_build or args.short or args.soak is not None
    if args.record and less:
        parser.error("--record goes with none of --plaintext, --no-build, --short and --soak")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    args = parse(argv)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: faults are taken back
    chosen = choose(args.only, short=args.short)
    if args.list:
        for one in chosen:
            say(f"{one.name:32}{'short' if one.short else 'long':7}{one.title}")
        return 0
    turn = my_turn()
    keep = args.keep or kubeconfig().exists()
    soak = (0.0 if args.short else SOAK_MINUTES) if args.soak is None else args.soak
    runner = Runner(args.minutes, shared=args.shared, soak=soak, strict=not args.plaintext)
    try:
        return play(runner, chosen, build=not args.no_build, record=args.record)
    except NoClusterError as none:
        say(f"e2e: {none}; no scenario was played")
        return 0 if args.minutes else 1
    except E2EError as error:
        say(f"e2e: {error}")
        return 1
    except KeyboardInterrupt:
        say("\ninterrupted")
        return 130
    finally:
        if not keep:
            stream(str(ROOT / "e2e/cluster/down"))
        turn.close()


def choose(only: Sequence[str] | None, *, short: bool) -> list[Scenario]:
    """In the order of play."""
    return [
        one
        for name, one in REGISTRY.items()
        if (not only or name in only) and (one.short or not short)
    ]


def my_turn() -> TextIO:
    """Waits until no other run plays on this machine's cluster; the turn ends with the file."""
    path = cache() / "run/scenarios"
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = path.open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        say("waiting for another run on this cluster")
        fcntl.flock(lock, fcntl.LOCK_EX)
    return lock


def play(runner: Runner, chosen: list[Scenario], *, build: bool, record: bool) -> int:
    """Plays and reports; the exit code."""
    at = report.commit()  # before it is built: files may change while it plays
    runner.prepare(chosen, build=build)
    kubernetes, page = runner.kubernetes(), None

    def keep(_: Result) -> None:
        nonlocal page
        page = report.write(
            runner.results, list(REGISTRY), kubernetes=kubernetes, at=at, record=record
        )

    try:
        runner.play(chosen, keep)
    finally:
        if page is not None:
            say(f"\n{report.table(runner.results)}\n\nwritten to {page.relative_to(ROOT)}")
    return 0 if all(one.passed for one in runner.results) else 1


if __name__ == "__main__":
    sys.exit(main())

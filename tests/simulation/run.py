"""Plays histories of the deterministic simulator and reports which break an invariant.

A failing seed prints what broke, its trace, and the command that replays it exactly. Seeds are
played on all cores; a seed is the same history on every machine.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Final, NoReturn

if __name__ == "__main__" and os.environ.get("PYTHONHASHSEED") != "0":
    # Before the imports below, which take seconds.
    os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "PYTHONHASHSEED": "0"})

sys.path.insert(0, str(Path(__file__).resolve().parent))

from penstock_sim.contents import Options
from penstock_sim.planting import ALL_BUGS, HEADER, Found, find, row, store_seeds
from penstock_sim.seeds import fresh_seeds, kept_seeds
from penstock_sim.totals import LOG_EVERY_S, TERMINAL_EVERY_S, Progress, Totals, report
from penstock_sim.workers import Lost, Workers, cores
from penstock_sim.world import simulate

_EXAMPLES: Final = """examples:
  run.py --seeds 2000 --kept --fresh-seconds 60    as `make sim` does
  run.py --damage --seeds 300                      bits flip on disks
  run.py --drains --seeds 300                      brokers are drained
  run.py --pauses --seeds 300                      processes are paused
  run.py --edits --seeds 300                       metadata is edited by hand
  run.py --blackouts --seeds 300                   all brokers lose power at once
  run.py --unclean --seeds 300                     unclean elections
  run.py --changes --seeds 300                     settings of a topic change
  run.py --first 5000 --seeds 1000 --keep-going    a thousand seeds, all failures
  run.py --seed 901872 --trace                     one history, event by event
  run.py --planted                                 every planted bug, and the seeds it took
  run.py --planted pipes                           only those with "pipes" in the kind or name
  run.py --planted --store                         store the table for the tests
"""
_INTERRUPTED: Final = 130
_WORDS: Final = {
    "damage": "bits that flip",
    "unclean": "unclean elections",
    "changes": "changes of topics",
}
"""What an option means in a line; the others say it themselves."""


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=_EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=100, help="how many; 100")
    parser.add_argument("--first", type=int, default=0, help="the first of them; 0")
    parser.add_argument(
        "--kept", action="store_true", help="then those in tests/simulation/seeds.txt"
    )
    parser.add_argument(
        "--fresh-seconds",
        type=float,
        default=0,
        metavar="N",
        help="then as many as N seconds allow, from a range that no run has played before; 0",
    )
    parser.add_argument(
        "--damage",
        action="store_true",
        help="bits flip on disks, in each history; not in those kept",
    )
    parser.add_argument(
        "--drains", action="store_true", help="brokers are drained, as --damage; both go together"
    )
    parser.add_argument(
        "--pauses",
        action="store_true",
        help="processes of brokers and controllers are paused, as --damage",
    )
    parser.add_argument(
        "--edits", action="store_true", help="the metadata store is edited by hand, as --damage"
    )
    parser.add_argument(
        "--blackouts",
        action="store_true",
        help="all brokers lose power at once, as --damage; also with groups and transactions",
    )
    parser.add_argument(
        "--unclean",
        action="store_true",
        help="brokers lose more than is promised, and topics allow unclean elections, as --damage",
    )
    parser.add_argument(
        "--changes", action="store_true", help="the settings of a topic change, as --damage"
    )
    parser.add_argument("--seed", type=int, help="only this one")
    parser.add_argument("--trace", action="store_true", help="print every event of it")
    parser.add_argument(
        "--planted",
        nargs="?",
        const="",
        metavar="TEXT",
        help="plant each bug, or those with TEXT in them, and print how many seeds found it",
    )
    parser.add_argument(
        "--store",
        action="store_true",
        help="with --planted: write the seed that found each bug to planted_seeds.txt",
    )
    parser.add_argument("--keep-going", action="store_true", help="do not stop at a failure")
    parser.add_argument("--workers", type=int, default=cores(), help="processes; one per core")
    options = parser.parse_args(arguments)
    if options.store and options.planted is None:
        parser.error("--store goes with --planted")
    if how_of(options) and (options.kept or options.planted is not None):
        names = "--damage, --drains, --pauses, --edits, --blackouts, --unclean and --changes"
        parser.error(f"{names} go with neither --kept nor --planted")
    if options.workers < 1 or options.seeds < 0 or options.fresh_seconds < 0:
        parser.error("--workers is at least 1; --seeds and --fresh-seconds are not negative")
    return options


def how_of(options: argparse.Namespace) -> Options:
    """What is in every history."""
    how: Options = {}
    if options.damage:
        how["damage"] = True
    if options.drains:
        how["drains"] = True
    if options.pauses:
        how["pauses"] = True
    if options.edits:
        how["edits"] = True
    if options.blackouts:
        how["blackouts"] = True
    if options.unclean:
        how["unclean"] = True
    if options.changes:
        how["changes"] = True
    return how


def main() -> int:
    """0: all seeds hold; 1: some do not; 130: interrupted."""
    options = parse()
    how = how_of(options)
    if options.seed is not None:
        history = simulate(options.seed, traced=options.trace, **how)
        return 0 if report(history, how, everything=True) else 1
    held = True
    try:
        if options.planted is not None:
            return 0 if look_for_bugs(options) else 1
        with Workers(options.workers, partial(simulate, **how) if how else None) as workers:
            for which, seeds in parts(options):
                held = play(workers, which, seeds, options) and held
                if not held and not options.keep_going:
                    break
    except KeyboardInterrupt:
        print("interrupted: no process is left", flush=True)
        return _INTERRUPTED
    return 0 if held else 1


def parts(options: argparse.Namespace) -> Iterator[tuple[str, Iterable[int]]]:
    """The parts to play, one after another: name and seeds."""
    first, count = options.first, options.seeds
    how = "".join(f" with {_WORDS.get(name, name)}" for name in how_of(options))
    if count:
        yield f"seeds from {first}{how}", range(first, first + count)
    if options.kept:
        yield "seeds that failed once", kept_seeds()
    if options.fresh_seconds:
        fresh = fresh_seeds(time.time_ns() // 1_000_000, options.fresh_seconds)
        yield f"fresh seeds from {fresh.first}{how}", fresh


def play(workers: Workers, which: str, seeds: Iterable[int], options: argparse.Namespace) -> bool:
    """Whether all of them hold. Prints how many were played, even when interrupted."""
    print(f"playing {which}, {workers.count} at a time", flush=True)
    totals = Totals()
    every_s = TERMINAL_EVERY_S if sys.stdout.isatty() else LOG_EVERY_S
    progress = Progress(totals, every_s, lambda line: print(line, flush=True))
    try:
        for history in workers.histories(seeds):
            progress.look()
            if history is not None and not totals.add(history):
                report(history, how_of(options), everything=False)
                if not options.keep_going:
                    break
    finally:
        print(totals.line(which), flush=True)
    return totals.failed == 0


def look_for_bugs(options: argparse.Namespace) -> bool:
    """Prints a line per planted bug, found or not; whether all were found."""
    text: str = options.planted
    wanted = [number for number, bug in enumerate(ALL_BUGS) if text in str(bug)]
    if not wanted:
        print(f"no planted bug has {text!r} in its kind or name")
        return False
    print(f"looking for {len(wanted)} planted bugs, {options.workers} at a time", flush=True)
    print(HEADER, flush=True)
    table = []
    with Workers(options.workers, find) as workers:
        for found in workers.histories(wanted):
            if isinstance(found, Lost):
                print(f"{ALL_BUGS[found.seed]}: the process ended: {found.exit_code}", flush=True)
            elif isinstance(found, Found):
                print(row(found), flush=True)
                table.append(found)
    good = [found for found in table if found.as_expected]
    most = max((found.seeds for found in table), default=0)
    print(
        f"{len(wanted)} planted bugs, {len(wanted) - len(good)} not found, the most seeds were "
        f"{most}"
    )
    if options.store:
        store_seeds(good)
    return len(good) == len(wanted)


def _interrupt(_signal: int, _frame: object) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _interrupt)
    sys.exit(main())

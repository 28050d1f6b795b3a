"""Tries mutants of the product: `make mutate PATHS=src/penstock/core/replication SAMPLE=60 SEED=1`.

Prints a line per mutant and the share noticed. The tree is copied into a temporary folder per
worker; the working tree is only read. Ctrl-C ends everything and removes the copies.
"""

import argparse
import json
import os
import queue
import random
import signal
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, NoReturn

from tools.mutation.changes import Mutant, count, in_scopes, sample
from tools.mutation.equivalents import Equivalents
from tools.mutation.matters import SIMULATOR, Step, steps_for
from tools.mutation.trials import Copy, InterruptedTrialError, TreeFailsError, Verdict

ROOT: Final = Path(__file__).resolve().parent.parent.parent
_INTERRUPTED: Final = 130


@dataclass(frozen=True, slots=True)
class Tried:
    """A mutant and what came of it; `why` is set for equivalents, which are not tried."""

    mutant: Mutant
    by: str | None
    seconds: float = 0.0
    why: str | None = None

    @property
    def outcome(self) -> str:
        if self.why is not None:
            return "equivalent"
        return "noticed" if self.by is not None else "MISSED"


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", nargs="+", help="files or folders of the product")
    parser.add_argument("--sample", type=int, metavar="N", help="only N mutants, drawn by --seed")
    parser.add_argument("--seed", type=int, help="draws the sample; a new one if not given")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="one per core")
    parser.add_argument("--report", type=Path, metavar="FILE", help="results as JSON lines, too")
    parser.add_argument(
        "--again", type=Path, metavar="FILE", help="only what this report says was missed"
    )
    parser.add_argument(
        "--except", dest="known", type=Path, metavar="FILE", help="not what this report has"
    )
    parser.add_argument(
        "--without-simulator", action="store_true", help="tests only: sooner, and notices less"
    )
    parser.add_argument("--list", action="store_true", help="print the mutants, try none")
    return parser.parse_args(arguments)


def main() -> int:
    """0: all noticed or equivalent; 1: some missed, or the tree fails as it is; 130: stopped."""
    options = parse()
    files = _files(options.paths)
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(10_000)
    mutants = _chosen(options, files, seed)
    print(
        f"{len(mutants)} of {count(ROOT, files)} mutants of {len(files)} files, seed {seed}",
        flush=True,
    )
    equivalents = Equivalents.load()
    for entry in equivalents.stale(ROOT):
        print(f"stale: {entry.path} has no line {entry.was!r}: remove it from the list")
    if options.list:
        for mutant in mutants:
            print(_place(mutant), "|", mutant.was, "→", mutant.now)
        return 0
    known = [Tried(one, None, why=why) for one in mutants if (why := equivalents.why(one))]
    for tried in known:
        print(_line(tried), flush=True)
    to_try = [one for one in mutants if equivalents.why(one) is None]
    with tempfile.TemporaryDirectory(prefix="penstock-mutation-") as folder:
        done, code = Run(Path(folder), options).play(to_try)
    summarize(known + done)
    if options.report:
        options.report.write_text("".join(_row(tried) + "\n" for tried in known + done))
    return code


class Run:
    """Workers that try mutants, each in its own copy of the tree."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self._folder = folder
        self._workers: int = options.workers
        self._simulates: bool = not options.without_simulator
        self._stop = threading.Event()
        self._copies: queue.Queue[Copy] = queue.Queue()
        self._done: list[Tried] = []
        self._usual_s: dict[Step, float] = {}

    def play(self, mutants: list[Mutant]) -> tuple[list[Tried], int]:
        """What came of each, and the exit code."""
        if not mutants:
            return [], 0
        for number in range(min(self._workers, len(mutants))):
            self._copies.put(Copy(ROOT, self._folder / f"worker-{number}", self._stop))
        signal.signal(signal.SIGTERM, _interrupt)
        with ThreadPoolExecutor(self._workers) as pool:
            try:
                total = len(mutants)
                for tried in pool.map(self._try, mutants):
                    self._done.append(tried)
                    print(f"[{len(self._done)}/{total}] {_line(tried)}", flush=True)
            except (KeyboardInterrupt, InterruptedTrialError, TreeFailsError) as error:
                self._stop.set()
                pool.shutdown(cancel_futures=True)
                if isinstance(error, TreeFailsError):
                    print(f"{error}\nthis fails on the tree as it is, too: mend it first")
                    return self._done, 1
                print("interrupted: no process is left", flush=True)
                return self._done, _INTERRUPTED
        return self._done, 1 if any(one.by is None for one in self._done) else 0

    def _steps(self, mutant: Mutant) -> list[Step]:
        return [step for step in steps_for(mutant.path) if self._simulates or step != SIMULATOR]

    def _try(self, mutant: Mutant) -> Tried:
        copy = self._copies.get()
        try:
            verdict: Verdict = copy.try_out(mutant, self._steps(mutant), self._usual_s)
        finally:
            self._copies.put(copy)
        return Tried(mutant, verdict.by, verdict.seconds)


def summarize(results: list[Tried]) -> None:
    """The share noticed, then what was missed."""
    noticed = sum(one.outcome == "noticed" for one in results)
    missed = [one for one in results if one.outcome == "MISSED"]
    tried = noticed + len(missed)
    share = f"{100 * noticed / tried:.1f} %" if tried else "nothing to notice"
    equivalent = len(results) - tried
    print(f"{noticed} of {tried} noticed, {share}; {equivalent} equivalent, listed", flush=True)
    for one in missed:
        print(_line(one))


def _line(tried: Tried) -> str:
    mutant = tried.mutant
    text = f"{tried.outcome} {_place(mutant)} | {mutant.was} → {mutant.now}"
    return f"{text} | {tried.why or tried.by or 'no test failed'} ({tried.seconds:.1f} s)"


def _place(mutant: Mutant) -> str:
    return f"{mutant.path}:{mutant.line} {mutant.scope}".rstrip()


def _row(tried: Tried) -> str:
    fields = {**asdict(tried.mutant), "outcome": tried.outcome, "by": tried.by, "why": tried.why}
    del fields["text"]
    return json.dumps(fields, ensure_ascii=False)


def _chosen(options: argparse.Namespace, files: list[str], seed: int) -> list[Mutant]:
    """What the command line asks for."""
    if options.again:
        missed = _keys(options.again, "MISSED")
        again = in_scopes(ROOT, {(path, scope) for path, scope, *_ in missed})
        return [one for one in again if one.key in missed]
    drawn = sample(ROOT, files, options.sample, seed)
    known = _keys(options.known) if options.known else set()
    return [one for one in drawn if one.key not in known]


def _keys(report: Path, *outcomes: str) -> set[tuple[str, ...]]:
    """The mutants in a report, those with these outcomes only if any are given."""
    rows = [json.loads(line) for line in report.read_text().splitlines()]
    return {
        (row["path"], row["scope"], row["was"], row["now"])
        for row in rows
        if not outcomes or row["outcome"] in outcomes
    }


def _files(paths: list[str]) -> list[str]:
    """The Python files below the paths, from the root of the repository."""
    found: set[str] = set()
    for path in paths:
        place = ROOT / path
        files = [place] if place.is_file() else sorted(place.rglob("*.py"))
        if not files:
            raise SystemExit(f"{path}: no Python file there")
        found |= {file.relative_to(ROOT).as_posix() for file in files}
    return sorted(found)


def _interrupt(_signal: int, _frame: object) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())

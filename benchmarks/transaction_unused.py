"""Part of `transactions.py`: what idempotent producers pay for transactions that nobody uses."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from functools import partial
from pathlib import Path

import penstock
from benchmarks.common import figure_of_rounds, in_turns, progress
from benchmarks.transaction_stage import Stage

BEFORE = "7da74ea"
"""The last commit before transactions."""
SCRIPT = Path(__file__).parent / "replica_machine.py"
NOW = Path(penstock.__file__).parents[1]
GOAL = "ratio ≥ 0.99"


def unused(stage: Stage) -> None:
    """The replica machine, the broker's hot path, on the code of then and of now, in turns.

    Each turn is a process of its own, so that neither warms up what the other uses.
    """
    sizes = stage.sizes
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as scratch:
        if not _restore(Path(scratch)):
            progress(f"no commit {BEFORE} in the history of this code: nothing to compare with")
            return
        found = in_turns(
            sizes.machine_rounds,
            {
                "now": partial(_batches_per_s, NOW, sizes.machine_batches),
                "before": partial(_batches_per_s, Path(scratch) / "src", sizes.machine_batches),
            },
        )
    for kind, words in (("alone", ""), ("watched", ", and what the broker looks at after each")):
        now, before = ([each[kind] for each in found[name]] for name in ("now", "before"))
        name = f"idempotent batches through a leader's machine{words}"
        vs = f"the same at {BEFORE}, before transactions"
        figure_of_rounds(name, now, "batches per CPU second", vs, before, goal=GOAL)


def _restore(folder: Path) -> bool:
    """Puts the code of `BEFORE` into `folder`; False if the history does not reach back so far."""
    archive = subprocess.run(
        ["git", "-C", str(SCRIPT.parents[1]), "archive", BEFORE, "src/penstock"],
        capture_output=True,
        check=False,
    )
    if archive.returncode:
        return False
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as packed:
        packed.extractall(folder, filter="data")
    return True


def _batches_per_s(source: Path, batches: int) -> dict[str, float]:
    """By kind (see `replica_machine.py`), with the code in `source`."""
    done = subprocess.run(
        [sys.executable, str(SCRIPT), f"--batches={batches}"],
        env={**os.environ, "PYTHONPATH": str(source)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return {kind: 1e6 / each for kind, each in json.loads(done.stdout).items()}

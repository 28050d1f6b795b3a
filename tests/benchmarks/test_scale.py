"""`benchmarks.scale` drives what ships, and every figure that docs/scale.md names is printed."""

import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
NAMED = re.compile(r"^\| ([^|]+) \|", re.MULTILINE)


def test_a_small_run_prints_every_figure_of_the_page() -> None:
    command = [sys.executable, "-m", "benchmarks.scale", "--quick"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    figures = [json.loads(line) for line in done.stdout.splitlines()]
    assert all({"name", "value", "unit", "vs", "ratio"} <= figure.keys() for figure in figures)
    printed = {re.split(r", [\d,]+ (?:brokers|groups)", one["name"])[0] for one in figures}
    table = (ROOT / "docs/scale.md").read_text().partition("<!-- figures -->")[2]
    named = set(NAMED.findall(table.partition("<!-- end -->")[0])) - {"figure", "---"}
    assert named
    assert named <= printed, named - printed

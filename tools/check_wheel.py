"""Builds the wheel, checks what is in it, and uses it the way an application developer would.

hatchling leaves out a missing `packages` path without a word, so the contents are
asserted. Then the wheel is installed without extras into a clean environment, where the client
must import and say in one line that nobody answers.
"""

import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WANTED = (
    "penstock/py.typed",
    "penstock/client/__init__.py",
    "penstock/proto/v1/broker_pb2.py",
    "penstock/proto/v1/broker_pb2.pyi",
    "penstock/spark/__init__.py",
    "penstock/verify/__init__.py",
    "pyspark_penstock/__init__.py",
    "penstock_broker/__main__.py",
    "penstock_operator/__init__.py",
)
UNWANTED = ("tests/", "examples/", "benchmarks/", "operator/", "src/", "tools/")
USE = """
import sys
from penstock.client import Admin, Consumer, Producer
from penstock.errors import PenstockError, UnreachableError
heavy = {"numpy", "pyarrow", "rocksdict", "zstandard", "lz4", "typer"} & set(sys.modules)
assert not heavy, f"the client imports {heavy}"
try:
    Admin("127.0.0.1:1", connect_timeout_ms=500).describe_cluster()
except UnreachableError as error:
    print(f"bare client works: {error.code.name}")
"""


def run(*command: str | Path) -> str:
    done = subprocess.run(
        [str(part) for part in command], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def check_contents(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    missing = [name for name in WANTED if name not in names]
    stray = [name for name in names if name.startswith(UNWANTED)]
    if missing or stray:
        raise SystemExit(f"{wheel.name}: missing {missing}, not wanted {stray}")
    print(f"{wheel.name}: {len(names)} files, nothing missing, nothing stray")


def use(wheel: Path, environment: Path, resolution: str) -> None:
    """Installs into a clean environment with the newest or oldest dependencies, and uses it."""
    venv.create(environment, with_pip=False)
    python = environment / "bin/python"
    uv = Path(sys.executable).with_name("uv")
    run(uv, "pip", "install", "-q", "--python", python, "--resolution", resolution, wheel)
    versions = run(uv, "pip", "list", "--python", python, "--format", "freeze").split()
    print(run(python, "-W", "error", "-c", USE).strip(), "on", ", ".join(versions))


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="penstock-wheel-") as scratch:
        run(sys.executable, "-m", "build", "--wheel", "--outdir", scratch, ROOT)
        (wheel,) = Path(scratch).glob("*.whl")
        check_contents(wheel)
        for resolution in ("highest", "lowest"):
            use(wheel, Path(scratch) / resolution, resolution)


if __name__ == "__main__":
    main()

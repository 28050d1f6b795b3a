"""Builds the wheel, checks what is in it, and uses it the way an application developer would.

hatchling leaves out a missing `packages` path without a word, so the contents are
asserted. Then the wheel is installed without extras into a clean environment, where the client
must import and say in one line that nobody answers, and the scripts must say in one line what
they lack. With the extra `cli` they must run; with `local`, the first minute must work: a cluster
without a manifest, a topic, a record in and out, the console. What has passed is in `dist`.
"""

import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import venv
import zipfile
from dataclasses import replace
from pathlib import Path

from tools.first_minute import STEPS, Shell

ROOT = Path(__file__).resolve().parent.parent
WANTED = (
    "penstock/py.typed",
    "penstock/client/__init__.py",
    "penstock/proto/v1/broker_pb2.py",
    "penstock/proto/v1/broker_pb2.pyi",
    "penstock/spark/__init__.py",
    "penstock/ui/static/htmx.LICENSE.txt",
    "penstock/ui/static/htmx.min.js",
    "penstock/ui/templates/base.html",
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
SCRIPTS = ("penstock", "kubectl-penstock")
ADVICE = "pip install 'penstock[cli]'"


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
    check_description(wheel, names)
    print(f"{wheel.name}: {len(names)} files, nothing missing, nothing stray")


def check_description(wheel: Path, names: list[str]) -> None:
    """A package index shows it without the files beside it, so its links must be whole."""
    (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
    text = zipfile.ZipFile(wheel).read(metadata).decode()
    links = re.findall(r"\]\(([^)\s]+)\)", text)
    partial = [link for link in links if not link.startswith(("https://", "#"))]
    if not links or partial:
        raise SystemExit(f"{wheel.name}: links of the description lead nowhere: {partial}")


def install(wheel: Path, extra: str, environment: Path, resolution: str) -> Path:
    """Into a clean environment, with the newest or oldest dependencies; returns its programs."""
    venv.create(environment, with_pip=False)
    python = environment / "bin/python"
    uv = Path(sys.executable).with_name("uv")
    wanted = [f"{wheel}[{extra}]", *requirements(extra)] if extra else [wheel]
    run(uv, "pip", "install", "-q", "--python", python, "--resolution", resolution, *wanted)
    versions = run(uv, "pip", "list", "--python", python, "--format", "freeze").split()
    print(f"installed [{extra}], {resolution}: {', '.join(versions)}")
    return environment / "bin"


def requirements(extra: str) -> list[str]:
    """What the extra asks for, to be named beside the wheel: only then it counts as direct."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    named = [one for each in extra.split(",") for one in extras[each]]
    return [one for one in named if not one.startswith("penstock[")]


def use_bare(programs: Path) -> None:
    """The client works; each script says in one line what it lacks."""
    print(run(programs / "python", "-W", "error", "-c", USE).strip())
    for script in SCRIPTS:
        done = subprocess.run(
            [programs / script, "--help"], capture_output=True, text=True, check=False
        )
        lines = done.stderr.splitlines()
        if done.returncode != 1 or done.stdout or len(lines) != 1 or ADVICE not in lines[0]:
            raise SystemExit(
                f"bare {script} --help: exit code {done.returncode}, not one line with {ADVICE}:\n"
                f"{done.stdout}{done.stderr}"
            )
        print(f"bare {script}: {lines[0]}")


def use_scripts(programs: Path) -> None:
    """Every script lists its commands, and one that needs a cluster gets as far as asking it."""
    for script in SCRIPTS:
        commands = run(programs / script, "--help")
        if "consume" not in commands:
            raise SystemExit(f"{script} --help does not list its commands:\n{commands}")
    done = subprocess.run(
        [programs / "penstock", "offsets", "t", "--bootstrap", "127.0.0.1:1", "-p", "zero"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode != 2 or "Traceback" in done.stderr:
        raise SystemExit(f"penstock with wrong usage: {done.returncode}\n{done.stderr}")
    print(f"{' and '.join(SCRIPTS)} run")


def use_first_minute(programs: Path, home: Path) -> None:
    """As a newcomer types it, in a home of its own and at free ports; nothing is left running."""
    home.mkdir()
    shell = Shell(programs, home)
    try:
        for step in STEPS:
            free = re.sub(r"--detach|--no-browser", r"\g<0> --port 0", step.command)
            for _ in shell.play(replace(step, command=free)):
                pass
    finally:
        stop = "penstock local down --purge --yes --cluster local"
        subprocess.run(
            ["/bin/bash", "-c", stop], env=shell.environment, capture_output=True, check=False
        )
    run(programs / "penstock", "verify", "run", "--help")  # its imports are there
    print(f"the first minute works: {'; '.join(step.command for step in STEPS)}")


def keep(wheel: Path, folder: Path) -> None:
    """Puts it where its user finds it, and says how to install it."""
    folder.mkdir(exist_ok=True)
    kept = Path(shutil.copy(wheel, folder))
    print(f"to install it: pip install '{kept}[local]'")


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="penstock-wheel-") as scratch:
        run(sys.executable, "-m", "build", "--wheel", "--outdir", scratch, ROOT)
        (wheel,) = Path(scratch).glob("*.whl")
        check_contents(wheel)
        for resolution in ("highest", "lowest"):
            use_bare(install(wheel, "", Path(scratch) / resolution, resolution))
        # Lowest of what we name ourselves: the oldest of everything below would not even build.
        for resolution in ("highest", "lowest-direct"):
            use_scripts(install(wheel, "cli", Path(scratch) / f"cli-{resolution}", resolution))
        local = install(wheel, "local", Path(scratch) / "local", "highest")
        use_first_minute(local, Path(scratch) / "home")
        keep(wheel, ROOT / "dist")


if __name__ == "__main__":
    main()

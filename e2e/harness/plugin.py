"""`kubectl penstock …`, as who works with the Cluster of the scenarios from outside has it."""

from e2e.harness.process import ROOT, Command, environment, run_bytes

STREAMS_CLUSTER = ("-n", "streams", "flights")


def plugin(*args: str, stdin: bytes | None = None, timeout_s: float = 60.0) -> str:
    """`kubectl penstock …` as a user has it: found by kubectl on the PATH."""
    path = f"{ROOT / '.venv/bin'}:{environment()['PATH']}"
    command = ("env", f"PATH={path}", "kubectl", "penstock", *args)
    return run_bytes(Command(command, stdin, timeout_s=timeout_s)).decode(errors="replace")

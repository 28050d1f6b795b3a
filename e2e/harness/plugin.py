"""`kubectl penstock …`, as who works with the Cluster of the scenarios from outside has it."""

from e2e.harness.process import ROOT, Command, environment, run_bytes

STREAMS_CLUSTER = ("-n", "streams", "flights")
ANSWERED = 'kubectl penstock "$@" || [ $? = 1 ]'
"""`why` has the exit code 1 if something is amiss."""


def plugin(*args: str, stdin: bytes | None = None, timeout_s: float = 60.0) -> str:
    """`kubectl penstock …` as a user has it: found by kubectl on the PATH."""
    return _run(("kubectl", "penstock", *args), stdin, timeout_s)


def why(cluster: str, timeout_s: float = 60.0) -> str:
    """What `kubectl penstock why` tells of a Cluster beside that of the scenarios."""
    return _run(("sh", "-c", ANSWERED, "why", "why", "-n", "streams", cluster), None, timeout_s)


def _run(command: tuple[str, ...], stdin: bytes | None, timeout_s: float) -> str:
    path = f"PATH={ROOT / '.venv/bin'}:{environment()['PATH']}"
    ran = run_bytes(Command(("env", path, *command), stdin, timeout_s=timeout_s))
    return ran.decode(errors="replace")

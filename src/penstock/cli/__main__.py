"""Where `penstock`, `kubectl-penstock` and `python -m penstock.cli` begin.

    imports of the command line ──▶ all there ─▶ main.py
                                └─▶ one missing ─▶ one line that says what to install, exit code 1

The client is installed without the command line's dependencies (the extra `cli`), but installers
write both scripts in any case. So this module imports nothing outside the standard library
before it knows that the rest is there.
"""

import sys


def main() -> None:
    """Runs one command and exits with its code."""
    try:
        from penstock.cli.main import main as run  # noqa: PLC0415 - see the module
    except ModuleNotFoundError as error:
        from penstock.cli.extras import describe_missing  # noqa: PLC0415 - see the module

        message = describe_missing(error, "the command line", "cli")
        if message is None:
            raise
        sys.exit(f"penstock: {message}")
    except KeyboardInterrupt:  # it takes a second on a busy machine
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()

"""`python -m penstock_broker broker|controller …`: the two server processes."""

import argparse
import sys

from penstock_broker.broker import main as broker
from penstock_broker.controller import main as controller


def main(argv: list[str] | None = None) -> int:
    """Runs one server until SIGTERM or SIGINT; the exit code is 0 after a clean stop."""
    parser = argparse.ArgumentParser(prog="python -m penstock_broker", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    broker.add_arguments(commands.add_parser("broker", help="serve partitions"))
    controller.add_arguments(commands.add_parser("controller", help="decide leaders and ISRs"))
    args = parser.parse_args(argv)
    return broker.run(args) if args.command == "broker" else controller.run(args)


if __name__ == "__main__":
    sys.exit(main())

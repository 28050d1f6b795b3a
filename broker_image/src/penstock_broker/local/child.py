"""Entry point of a server process of local mode: ends when the process that started it is gone.

    python -m penstock_broker.local.child broker --broker-id 0 …

Standard input is a pipe whose other end only the parent holds. When the parent exits, in any way,
the kernel closes that end, the read here returns and this process stops itself: first as on
SIGTERM, then for good. (`PR_SET_PDEATHSIG` would tie the child to the *thread* that started it,
which is wrong if a short-lived thread of the parent starts brokers.)
"""

import os
import signal
import sys
import threading

from penstock_broker.__main__ import main

STOP_SECONDS_MAX = 10.0
"""How long a clean stop may take after the parent has ended."""


def _end_with_parent() -> None:
    while os.read(0, 4096):
        pass  # nothing is ever sent; only the end counts
    # The kernel's timer, not a thread's: it also ends a process that hangs while it exits.
    signal.setitimer(signal.ITIMER_REAL, STOP_SECONDS_MAX)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=_end_with_parent, name="end-with-parent", daemon=True).start()
    sys.exit(main())

"""Former releases of this project, as trees that processes run from.

e2e/releases.txt ─▶ commit ─▶ git archive ─▶ a folder ─▶ PYTHONPATH of a server process
"""

import subprocess
from pathlib import Path
from typing import Final

from support.missing import cannot_run
from support.processes import ServerProcess

from e2e.harness.process import E2EError
from e2e.harness.releases import commits, extract

_PACKAGES: Final = ("src", "broker_image/src")
_GRACE_S: Final = 30.0


class Releases:
    """Their trees, taken from the history into a folder."""

    def __init__(self, folder: Path) -> None:
        self._trees = {name: _extract(commit, folder / name) for name, commit in commits().items()}

    def use(self, process: ServerProcess, name: str) -> None:
        """From its next start on; "N": this release."""
        paths = [] if name == "N" else [str(self._trees[name] / one) for one in _PACKAGES]
        process.environment.pop("PYTHONPATH", None)
        if paths:
            process.environment["PYTHONPATH"] = ":".join(paths)

    def stop(self, process: ServerProcess) -> None:
        """As the kubelet does. Former brokers have a fault that was mended since: the link to a
        leader goes on for ever if its stream breaks at the moment at which it is stopped, after
        the broker has handed over all that it led. This release has to end by itself."""
        if "PYTHONPATH" not in process.environment:
            process.stop()
            return
        process.terminate()
        try:
            process.wait_end(_GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()


def _extract(commit: str, folder: Path) -> Path:
    """Where the history lacks the commit, in a shallow clone, the test is skipped; in CI it fails,
    because nobody would miss it there."""
    try:
        extract(commit, folder, *_PACKAGES)
    except E2EError as error:
        cannot_run(str(error))
    return folder

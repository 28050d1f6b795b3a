"""Records what the processes of real clusters export before and while a fault is there.

    PYTHONPATH=tests python -m support.fault_recordings [FAULT …]

Each fault is made in a cluster of its own; all its processes are scraped once a second, first in
health, then with the fault. Nothing in `recorded/<fault>.json` is made by hand. Needs a minute per
fault; `alert_rules` reads it. One scene has no fault, and much to do instead (`health_scene`).
"""

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from support.fault_scene import Scene
from support.health_scene import ALSO, IN_HEALTH
from support.kubernetes_faults import KUBERNETES_FAULTS
from support.local_faults import LOCAL_FAULTS
from support.recordings import FAULTY_S, HEALTHY_S, Recorder, save

FAULTS: Final[dict[str, Callable[[Path], AbstractContextManager[Scene]]]] = {
    **{name: fault.scene for name, fault in LOCAL_FAULTS.items()},
    **KUBERNETES_FAULTS,
}
HEALTH: Final = "in-health"
SCENES: Final = {**FAULTS, HEALTH: IN_HEALTH.scene}


def record(name: str) -> None:
    """Writes one file."""
    with TemporaryDirectory() as folder, SCENES[name](Path(folder) / "scene") as scene:
        recorder = Recorder(scene.targets, also=ALSO if name == HEALTH else ())
        recorder.run(HEALTHY_S)
        scene.make_fault()
        recorder.run(FAULTY_S)
    save(name, recorder.series)


if __name__ == "__main__":
    for chosen in sys.argv[1:] or SCENES:
        record(chosen)

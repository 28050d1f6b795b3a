"""The README's Python runs as it stands, against a cluster at another address."""

import re
import signal
import subprocess
import sys
from pathlib import Path

from support.cluster import Cluster
from support.waiting import wait_until

README = Path(__file__).resolve().parents[2] / "README.md"
ADDRESS = "localhost:9092"


def first_program() -> str:
    """The first block of Python, which produces and consumes."""
    found = re.search(r"^```python\n(.*?)^```$", README.read_text(), re.DOTALL | re.MULTILINE)
    assert found is not None
    assert ADDRESS in found[1]
    return found[1]


def test_a_newcomer_sends_a_record_and_reads_it_in_a_group(
    shared_broker: Cluster, tmp_path: Path
) -> None:
    shared_broker.create_topic("flights", partitions=6)
    program = first_program().replace(ADDRESS, shared_broker.bootstrap)
    printed, complained = tmp_path / "out", tmp_path / "err"
    with printed.open("wb") as out, complained.open("wb") as err:
        process = subprocess.Popen([sys.executable, "-u", "-c", program], stdout=out, stderr=err)
        try:
            wait_until(
                lambda: process.poll() is not None or "b'on time'" in printed.read_text(),
                what="the record was read",
            )
            process.send_signal(signal.SIGINT)
            process.wait(30)
        finally:
            process.kill()
            process.wait(30)
    delivered, read = printed.read_text().splitlines()
    assert "DeliveryReport" in delivered
    assert read.endswith("0 b'UA' b'on time'"), read
    assert complained.read_text().rstrip().endswith("KeyboardInterrupt")

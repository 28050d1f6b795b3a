"""Results as people read them: names in full, units as they are written everywhere."""

import pytest

from penstock.cli.options import Output
from penstock.cli.output import print_record


def test_units_and_abbreviations_keep_their_spelling(capsys: pytest.CaptureFixture[str]) -> None:
    record = {"mib_per_second": 1.5, "under_min_isr_partitions": 0, "topic_id": "x"}
    print_record(record, Output.TABLE)
    labels = [line.partition(":")[0] for line in capsys.readouterr().out.splitlines()]
    assert labels == ["MiB per second", "Under min ISR partitions", "Topic id"]

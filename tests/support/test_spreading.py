"""Files are handed out long ones first, those on Spark together."""

from pathlib import Path

import pytest
from support.spreading import LONG_FIRST, gives_way, processes, rank, scope_of

ROOT = Path(__file__).resolve().parents[2]
QUICK = "tests/penstock/core/test_records.py::test_x"
SCENARIO = "tests/scenarios/test_bank.py::test_x[a::b]"
RECIPE = "tests/penstock/spark/test_spark_recipe.py::test_x"
SINK = "tests/penstock/spark/test_spark_sink.py::TestX::test_y"


def test_what_takes_parts_of_a_second_comes_last() -> None:
    assert sorted([QUICK, SCENARIO, SINK], key=rank) == [SINK, SCENARIO, QUICK]


@pytest.mark.parametrize("begin", LONG_FIRST)
def test_what_is_said_to_take_long_is_there(begin: str) -> None:
    assert list(ROOT.glob(f"{begin}*"))


def test_there_is_work_for_every_core_while_tests_wait() -> None:
    assert processes() >= 2


def test_a_file_stays_whole_and_all_with_a_jvm_stay_together() -> None:
    assert scope_of(SCENARIO) == "tests/scenarios/test_bank.py"
    assert scope_of(RECIPE) == scope_of(SINK) != scope_of(QUICK)


def test_all_others_give_way_to_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw0")
    monkeypatch.setattr("os.nice", lambda by: by)  # nothing is nicer yet
    assert gives_way(SINK) == 0
    assert gives_way(SCENARIO) == gives_way(QUICK) > 0
    monkeypatch.delenv("PYTEST_XDIST_WORKER")
    assert gives_way(SCENARIO) == 0, "alone, nothing waits for it"

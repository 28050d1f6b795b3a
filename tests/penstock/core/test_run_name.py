"""Names of runs: back as they went in, within the limit of a name."""

from penstock.core.run_name import COLUMN, RunName
from penstock.core.transactions.producers import TEXT_MAX_CHARS

UUID = "0c8f1e7a-7d55-4c5e-9d0a-5f3b8f0f7a11"


def test_a_sinks_run_comes_back_as_it_went_in() -> None:
    run = RunName.of_sink(UUID, "paid", UUID, "/checkpoints/paid")
    assert RunName.parse(str(run)) == run
    assert (run.execution, run.target, run.query_run) == (UUID, "paid", UUID)
    assert run.place == RunName.of_sink(UUID, "other", "", "/checkpoints/paid").place != ""
    assert RunName.of_sink(UUID, None) == RunName(UUID, COLUMN)


def test_a_place_is_the_same_however_it_is_written() -> None:
    for same in ("/cp/a", "/cp/a/", "file:/cp/a", "file:///cp/a/"):
        assert (
            RunName.of_sink(UUID, "t", "", same).place
            == RunName.of_sink(UUID, "t", "", "/cp/a").place
        )
    for bucket in ("s3a://b/cp", "s3a://b/cp/"):
        assert (
            RunName.of_sink(UUID, "t", "", bucket).place
            == RunName.of_sink(UUID, "t", "", "s3a://b/cp").place
        )
    places = [RunName.of_sink(UUID, "t", "", one).place for one in ("/cp/a", "/cp/b", "s3a://b/cp")]
    assert len(set(places)) == 3


def test_any_other_name_is_an_execution() -> None:
    for name in ("", UUID, "jobs/2026/11/28/1", "spark/a/b", "spark/a/b/c/d/e"):
        assert RunName.parse(name) == RunName(name)


def test_long_topics_are_told_apart_within_the_limit() -> None:
    one, other = (RunName.of_sink(UUID, "t" * 248 + end, UUID, "/c" * 500) for end in "ab")
    assert one.target != other.target
    assert len(str(one)) <= TEXT_MAX_CHARS

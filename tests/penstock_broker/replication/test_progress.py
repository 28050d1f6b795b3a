"""How fast a copy is, from what was written here and what is left."""

from penstock_broker.replication.progress import Pace


def test_a_pace_is_that_of_the_last_ten_seconds() -> None:
    pace = Pace()
    assert pace.put(0, 0) == 0
    assert pace.put(2_000, 2_000) == 1_000
    for second in range(4, 14, 2):
        pace.put(second * 1_000, second * 1_000)
    assert pace.put(42_000, 14_000) == 3_800, "what was 12 s ago no longer counts"


def test_a_log_that_only_grows_is_not_copied() -> None:
    pace = Pace()
    written, left = 100, 100
    pace.put(written - left, 0)
    assert pace.put((written + 50) - (left + 50), 2_000) == 0


def test_a_copy_that_begins_anew_has_no_pace_until_it_moves() -> None:
    pace = Pace()
    pace.put(5_000, 0)
    assert pace.put(0, 2_000) == 0
    assert pace.put(1_000, 4_000) == 500

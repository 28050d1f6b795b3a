"""What a volume has room for: writes down to the reserve, copies only with far more."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock_broker.maintenance.disk import DiskGuard

GIB = 1 << 30


@pytest.mark.parametrize(
    ("free", "reserve", "fits"),
    [
        (10 * GIB, 1 * GIB, True),
        (10 * GIB - 1, 1 * GIB, False),
        (16 * GIB, 8 * GIB, True),
        (16 * GIB - 1, 8 * GIB, False),
    ],
    ids=["a tenth", "less than a tenth", "twice the reserve", "less than twice the reserve"],
)
def test_copies_need_a_tenth_of_the_volume_and_twice_the_reserve(
    free: int, reserve: int, fits: bool
) -> None:
    with ThreadPoolExecutor(1) as executor:
        disk = DiskGuard(
            lambda: (free, 100 * GIB),
            reserve_bytes=reserve,
            interval_s=1,
            executor=executor,
            on_change=lambda: None,
        )
    assert disk.has_space_for_copies is fits
    assert not disk.is_full

"""Which brokers refuse writes because their disks are full: what a status must not hide."""

from typing import TYPE_CHECKING

from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.client.sync.admin import Admin


def full_disks(admin: "Admin") -> tuple[int, ...]:
    """Ids of live brokers. Those of which nothing is known are not among them: one does not answer,
    or the caller may not ask."""
    try:
        return tuple(one.broker_id for one in admin.describe_logs() if one.disk_is_full)
    except PenstockError:
        return ()

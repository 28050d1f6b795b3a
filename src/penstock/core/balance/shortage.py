"""Why there is no plan, in words and numbers: what lacks, and how much of it would be enough."""

from collections.abc import Callable

from penstock.core.balance.layout import DISK_PERCENT, RESERVES_FREE, Layout

GIB = 1 << 30
NAMED_MAX = 3
"""How many topics or brokers a reason names; it counts the others."""


def gib(size: int) -> str:
    """As 94 GiB, 1.4 GiB; less than one in MiB."""
    if size < GIB:
        return f"{-(-size // (1 << 20))} MiB"
    return f"{size / GIB:.1f}".removesuffix(".0") + " GiB"


def named(names: list[str]) -> str:
    """A few by name, the rest as a number."""
    shown = ", ".join(names[:NAMED_MAX])
    more = len(names) - NAMED_MAX
    return f"{shown} and {more} more" if more > 0 else shown


def shortage(
    layout: Layout, force: Callable[[Layout], int | None], topic_replicas: int | None
) -> str:
    """What lacks: brokers, or disk.

    `layout` is as at the beginning, with unlimited disks: `force` tries again on it.
    `topic_replicas`: what the wish demands for its topic; None = as many as before.
    """
    needed = [topic_replicas or len(replicas) for replicas in layout.placed]
    stuck = force(layout)
    if stuck is not None:
        if topic_replicas:
            own = layout.topic[stuck]
            needed = [count if layout.topic[at] == own else 0 for at, count in enumerate(needed)]
        return _brokers_lack(layout, stuck, needed)
    full = [at for at, room in enumerate(layout.room) if room < 0 and layout.open[at]]
    assert full, "it works only with unlimited disks, and no disk is too small"
    return _disk_lacks(layout, full)


def _brokers_lack(layout: Layout, stuck: int, needed: list[int]) -> str:
    usable = sum(layout.open)
    lacking: dict[tuple[str, int], int] = {}
    for partition, replicas in enumerate(layout.base):
        # Replicas on brokers that take nothing new, but do not leave, stay where they are.
        stay = sum(not layout.open[at] and not layout.leaving[at] for at in replicas)
        missing = needed[partition] - stay - usable
        if missing > 0:
            lacking[layout.facts[partition].partition.topic, needed[partition]] = missing
    if not lacking:
        return (
            f"no broker may take a replica of {layout.facts[stuck].partition}: each of the "
            f"{usable} that may be used has one, or is in a rack with its share of them; "
            "needs brokers in other racks"
        )
    topics = named([f"{topic} ({replicas} replicas)" for topic, replicas in sorted(lacking)])
    return (
        f"{usable} brokers may be used, and these topics need more: {topics}; "
        f"needs {_more(max(lacking.values()))}, or fewer replicas of these topics"
    )


def _disk_lacks(layout: Layout, full: list[int]) -> str:
    def held(at: int) -> int:
        return layout.limit[at] - layout.room[at]

    worst = max(full, key=lambda at: (held(at) / layout.brokers[at].disk_bytes, -at))
    broker = layout.brokers[worst]
    usable = [at for at, is_open in enumerate(layout.open) if is_open]
    limit = max(1, sum(layout.limit[at] for at in usable) // len(usable))
    lacking = -(-sum(-layout.room[at] for at in full) // limit)
    volume = max(
        max(
            -(-held(at) * 100 // DISK_PERCENT),
            held(at) + RESERVES_FREE * layout.brokers[at].reserve_bytes,
        )
        for at in full
    )
    others = f", and {len(full) - 1} more would hold too much" if len(full) > 1 else ""
    return (
        f"broker {broker.id} would hold {gib(held(worst))} of {gib(broker.disk_bytes)}, and "
        f"{gib(layout.limit[worst])} is the limit{others}; "
        f"needs {_more(lacking)}, or volumes of {-(-volume // GIB)}Gi"
    )


def _more(brokers: int) -> str:
    return f"{brokers} more broker" + ("s" if brokers != 1 else "")

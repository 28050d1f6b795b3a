"""What is in a history: by its seed, or as a test wants it.

A blackout keeps groups and transactions out, unless the test wants blackouts: only what was
acknowledged with sync=DISK outlasts it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypedDict

GROUPS_EVERY: Final = 3
"""Of so many seeds one has consumer groups, unless all brokers lose power in it."""
JOURNAL_EVERY: Final = 2
"""In one of this many seeds, brokers keep a journal while the metadata store is unavailable."""
TRANSACTIONS_IN: Final = (2, 4)
"""A third of the seeds, by their remainder of 6, has transactions, but none that has groups."""
SPARK_IN: Final = (2, 8, 10)
"""Half of those have a Spark query, by their remainder of 18."""
COMPACTION_IN: Final = (16, 26)
"""In some of them partitions are compacted, by their remainder of 36; they take longest."""
DELETION_IN: Final = (4, 8, 10, 32)
"""In some of those a topic is deleted under them, by their remainder of 36."""
PIPES_IN: Final = (3, 18)
"""Pipes, by the remainder of 24: groups whose members write what they make of records, and the
offsets behind them, in transactions; a bank writes what they read."""
RINGS_IN: Final = (27, 90)
"""A quarter of those, by the remainder of 96: the second pipe writes where the first reads."""
DARK_EVERY: Final = 12
"""Histories with blackouts, or with unclean elections, are the same in the next so many seeds, but
for journals: those that have one have none there."""
DARK_COMPACTION_IN: Final = (1, 2, 3, 5, 7, 9, 10, 11)
"""In these, instead of those above, by their remainder of `DARK_EVERY`: all without groups and
transactions, half of those with transactions."""
BANK_IN: Final = (34,)
"""By the remainder of 36, a bank instead of other transactional producers, and no group."""
OPERATOR_EVERY: Final = 5
"""In one of so many seeds with transactions, of whatever kind, an operator aborts some of them."""
MOVES_IN: Final = (1, 2)
"""Replicas move in half of the seeds, by their remainder of 4: with journals and without."""
SEEKS_IN: Final = (3,)
"""In half of the seeds with groups, by their remainder of 6, users seek back."""
HIBERNATION_IN: Final = (5, 12, 14, 47)
"""By the remainder of 48, a cluster is put to sleep and woken: alone, with groups, with
transactions, with journals. Only where a test wants nothing in particular."""
REBIRTH_IN: Final = (0, 3)
"""In half of the seeds with changes, by their remainder of 4, a topic is deleted, created again."""
_ALONE: Final = (
    "groups",
    "transactions",
    "spark",
    "deletion",
    "compaction",
    "pipe",
    "bank",
    "ring",
)
"""Whoever wants one of these, or wants it not, gets pipes and banks only if wanted."""


class Options(TypedDict, total=False):
    """What a test wants; what it leaves out, or None, is as the seed has it.

    `faults`: names of the nemesis's methods to use, all if empty. `pipe`, `bank`, `ring`: instead
    of groups and transactions. `brokers`, `factor`: see `draw_layout`. `damage`: bits flip; in no
    history that does not ask for it, so that those are what they always were. `operator_pods`: the
    same, of two operators of Kubernetes. `drains`: the same, of brokers, while replicas move.
    `pauses`: the same, of brokers' and controllers' processes. `edits`: the same, of documents in
    the metadata store, by hand; then nothing else happens to controllers, and no replica moves.
    `blackouts`: all brokers lose power at once in every history, whatever is in it. `unclean`:
    topics of producers allow unclean elections, those of coordinators in half of the histories, and
    their brokers lose more than is promised to be survived. `changes`: settings of the topic of
    producers change, and another one is deleted and created again.
    `hibernation`: by the seed only if there is no other option. The others: whether it is in the
    history, see the constants above.
    """

    faults: frozenset[str]
    groups: bool | None
    journal: bool | None
    transactions: bool | None
    spark: bool | None
    deletion: bool | None
    compaction: bool | None
    pipe: bool | None
    bank: bool | None
    ring: bool | None
    operator: bool | None
    brokers: int | None
    factor: int | None
    moves: bool | None
    hibernation: bool | None
    seeks: bool | None
    damage: bool | None
    operator_pods: bool | None
    drains: bool | None
    pauses: bool | None
    edits: bool | None
    blackouts: bool | None
    unclean: bool | None
    changes: bool | None
    rebirth: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What is in a history, if nothing keeps it out."""

    groups: bool
    journal: bool
    transactions: bool
    spark: bool
    deletion: bool
    compaction: bool
    pipe: bool
    bank: bool
    ring: bool
    operator: bool
    moves: bool
    hibernation: bool
    seeks: bool
    rebirth: bool


def contents_of(seed: int, options: Options) -> Contents:
    """By the seed, where the options leave it open."""
    plain = all(wanted is None for wanted in options.values())
    changing = bool(options.get("changes"))
    alone = changing or any(options.get(name) is not None for name in _ALONE)

    def choose(wanted: bool | None, by_seed: bool) -> bool:
        return by_seed if wanted is None else wanted

    dark = bool(options.get("blackouts") or options.get("unclean"))
    swapped = dark and seed % (2 * DARK_EVERY) >= DARK_EVERY
    still = bool(options.get("edits"))
    compaction = seed % (DARK_EVERY if dark else 36) in (
        DARK_COMPACTION_IN if dark else COMPACTION_IN
    )
    compaction = changing or compaction

    return Contents(
        groups=choose(options.get("groups"), seed % GROUPS_EVERY == 0),
        journal=choose(options.get("journal"), (seed % JOURNAL_EVERY == 1) is not swapped),
        transactions=choose(options.get("transactions"), seed % 6 in TRANSACTIONS_IN),
        spark=choose(options.get("spark"), not changing and seed % 18 in SPARK_IN),
        deletion=choose(options.get("deletion"), not changing and seed % 36 in DELETION_IN),
        compaction=choose(options.get("compaction"), compaction),
        pipe=choose(options.get("pipe"), not alone and seed % 24 in PIPES_IN),
        bank=choose(options.get("bank"), not alone and seed % 36 in BANK_IN),
        ring=choose(options.get("ring"), not alone and seed % 96 in RINGS_IN),
        operator=choose(options.get("operator"), seed % OPERATOR_EVERY == 0),
        moves=not still
        and choose(options.get("moves"), bool(options.get("drains")) or seed % 4 in MOVES_IN),
        hibernation=choose(options.get("hibernation"), plain and seed % 48 in HIBERNATION_IN),
        seeks=choose(options.get("seeks"), seed % 6 in SEEKS_IN),
        rebirth=choose(options.get("rebirth"), changing and seed % 4 in REBIRTH_IN),
    )

"""What `penstock top` shows: the overview, the busiest topics, the groups that are furthest behind.

The same rows as on the console's pages, in another order. Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.views.answers import Answer, TopicTraffic, empty_text
from penstock.views.cells import Fact, Table
from penstock.views.groups import GroupAnswer, group_table, total_lag
from penstock.views.overview import ClusterAnswers, Explanation, broker_table, explain, facts
from penstock.views.topics import is_internal, topic_table

if TYPE_CHECKING:
    from penstock.client import GroupListing, TopicDescription


@dataclass(frozen=True, slots=True)
class TopAnswers:
    """All that is asked for one look."""

    cluster: ClusterAnswers
    topics: "Answer[dict[str, TopicDescription]]"
    traffic: Mapping[str, TopicTraffic]
    listed: "Answer[list[GroupListing]]"
    groups: Mapping[str, Answer[GroupAnswer]]


@dataclass(frozen=True, slots=True)
class Top:
    """One look."""

    why: Explanation
    facts: tuple[Fact, ...]
    tables: tuple[Table, ...]
    problems: tuple[str, ...]

    def to_dict(self) -> dict[str, object]:
        """For programs. A number that is not known is null."""
        return {
            "why": self.why.to_dict(),
            "facts": {
                one.label.lower().replace(" ", "_").replace("-", "_"): one.cell.value
                for one in self.facts
            },
            **{table.title.lower(): table.to_rows() for table in self.tables},
            "problems": list(self.problems),
        }


def look(seen: TopAnswers, rows: int) -> Top:
    """`rows`: of topics and of groups, at most."""
    topics = [one for name, one in (seen.topics.value or {}).items() if not is_internal(name, one)]
    topics.sort(key=lambda one: (-_rate(seen.traffic.get(one.topic)), one.topic))
    groups = sorted(
        seen.listed.value or (), key=lambda one: (-_behind(seen.groups, one.group_id), one.group_id)
    )
    no_topics = empty_text(seen.topics, "There are no topics.")
    no_groups = empty_text(seen.listed, "There are no groups.")
    answers: list[Answer[Any]] = [seen.topics, seen.listed, *seen.groups.values()]
    return Top(
        explain(seen.cluster),
        facts(seen.cluster),
        (
            broker_table(seen.cluster),
            _first(topic_table(topics[:rows], seen.traffic, no_topics), len(topics)),
            _first(group_table(groups[:rows], seen.groups, no_groups), len(groups)),
        ),
        tuple(dict.fromkeys([*(one.problem for one in answers if one.problem), *_not_asked(seen)])),
    )


def _not_asked(seen: TopAnswers) -> list[str]:
    """Those may be further behind than all that are shown."""
    whole, asked = len(seen.listed.value or ()), len(seen.groups)
    if asked >= whole:
        return []
    left = whole - asked
    return [f"the lag of {left:,} of {whole:,} groups: only the first {asked:,} by name are asked"]


def _rate(moving: TopicTraffic | None) -> float:
    return (moving.records_rate or 0.0) if moving is not None else 0.0


def _behind(groups: Mapping[str, Answer[GroupAnswer]], group_id: str) -> int:
    answer = groups.get(group_id)
    if answer is None or answer.value is None:
        return 0
    return total_lag(list(answer.value.lags.values())).records or 0


def _first(table: Table, whole: int) -> Table:
    shown = len(table.rows)
    note = f"the first {shown:,} of {whole:,}" if shown < whole else ""
    return Table(table.title, table.columns, table.rows, table.empty, note)

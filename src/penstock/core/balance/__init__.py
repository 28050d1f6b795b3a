"""Which replicas go where: a pure planner, for the command line, the operator and local mode.

Belongs here: what a plan is made from (`facts`: brokers, partitions, a wish), what it is (`plan`),
the way from one to the other (`planner` first; then `forced`, `spread`, `improve`, `leaders`), the
working copy these change (`layout`, measured by `score`), and why there is none (`shortage`).

Never here: what the controller does with a plan (`core/control`), wire types, documents, clocks.
Invariant I38: plans are deterministic, a fixed point, and within the hard goals after every prefix.
"""

from penstock.core.balance.facts import (
    Balance,
    BrokerFacts,
    Drain,
    Factor,
    Facts,
    Leaders,
    PartitionFacts,
    Replace,
    Spread,
    Wish,
)
from penstock.core.balance.plan import BrokerChange, Infeasible, Move, Plan
from penstock.core.balance.planner import plan
from penstock.core.balance.score import Score

__all__ = [
    "Balance",
    "BrokerChange",
    "BrokerFacts",
    "Drain",
    "Factor",
    "Facts",
    "Infeasible",
    "Leaders",
    "Move",
    "PartitionFacts",
    "Plan",
    "Replace",
    "Score",
    "Spread",
    "Wish",
    "plan",
]

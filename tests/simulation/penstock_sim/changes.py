"""A topic's settings change while it is written, copied, retained, compacted and read.

    some settings ─▶ AlterConfigs ─▶ a controller ─▶ its answer, or none
                                          images ─▶ brokers: retention, compaction, replication

One request at a time is under way. Only in histories that want it, and from a generator of its own:
the others are what they were. The brokers of these histories run the retention and the compaction
that ship (`upkeep`), by what they know of the settings; nobody else removes anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.core.control import ControlConfig
from penstock.core.control import contract as cc
from penstock.errors import Applied, PenstockError
from penstock_sim.change_checks import ChangeChecks
from penstock_sim.limits import Limits
from penstock_sim.scheduler import RuleError
from penstock_sim.tombstones import Tombstones

if TYPE_CHECKING:
    from collections.abc import Mapping
    from random import Random

    from penstock.core.topic import TopicConfig
    from penstock_sim.world import World

UNHARMED: Final = ("retention",)
"""What the nemesis leaves alone: the topic's settings say what goes."""
PATIENCE_MS: Final = 700
"""More than a controller's own: without an answer it has ended."""
_MARK: Final = "message.timestamp.before.max.ms"
"""Another number in each request: it is always stored, and whoever asked can tell."""
_POLICY: Final = "cleanup.policy"
_VALUES: Final[Mapping[str, tuple[str, ...]]] = {
    _POLICY: ("delete", "compact", "compact,delete"),
    "retention.ms": ("-1", "400", "1600", "6400"),
    "retention.bytes": ("-1", "0", "400", "2500"),
    "delete.retention.ms": ("0", "240", "1200"),
    "min.compaction.lag.ms": ("0", "400", "2400"),
    "max.compaction.lag.ms": ("1", "800"),
    "min.cleanable.dirty.ratio": ("0", "0.01", "0.5"),
}
"""Times are those of nodes, which are eight times faster; a batch has about a hundred bytes."""
_MIN_ISR: Final = "min.insync.replicas"


class Settings:
    """What a topic's settings may be, by the answers to requests that change them."""

    def __init__(self, configs: Mapping[str, str]) -> None:
        """`configs`: those it was created with."""
        self._may: dict[str, set[str | None]] = {name: {value} for name, value in configs.items()}

    def asked(self, changes: Mapping[str, str | None]) -> None:
        """For these values; None: unset."""
        for name, value in changes.items():
            self._of(name).add(value)

    def accepted(self, changes: Mapping[str, str | None]) -> None:
        """What was asked before can no longer be stored."""
        for name, value in changes.items():
            self._may[name] = {value}

    def refused(self, before: Mapping[str, set[str | None]]) -> None:
        """Nothing was done: they are as `values` was."""
        self._may = {name: set(values) for name, values in before.items()}

    @property
    def values(self) -> Mapping[str, set[str | None]]:
        """By name; a copy."""
        return {name: set(values) for name, values in self._may.items()}

    def check(self, stored: Mapping[str, str], who: str) -> None:
        """Raises RuleError if what is stored is none of it."""
        for name in {*stored, *self._may}:
            if stored.get(name) not in self._of(name):
                raise RuleError(
                    f"I21: {name} of {who} is {stored.get(name)}, not {self._of(name)}, as was "
                    "answered"
                )

    def _of(self, name: str) -> set[str | None]:
        return self._may.setdefault(name, {None})


class Changes:
    """Of one history."""

    def __init__(self, world: World, topic: str) -> None:
        self.world = world
        self.checks = ChangeChecks(world)
        self.count = 0
        self._topic = topic
        self._random: Random = world.scheduler.generator("changes")
        self._pace_ms = self._random.uniform(30, 200)
        self._settings = Settings(world.layout.configs)
        self.limits = Limits(world)
        self.tombstones = Tombstones(world)
        self._waiting = 0
        """The number of the request under way; 0: none is."""

    def start(self) -> None:
        """Once the topic is there."""
        self.limits.start()
        self.tombstones.start()
        self._next()

    def _next(self) -> None:
        self.world.scheduler.at_pace(self._random, self._pace_ms, self._act)

    def _act(self) -> None:
        if not self.world.chaotic:
            return
        active = [one for one in self.world.controllers.values() if one.active]
        if active and not self._waiting:
            self.count += 1
            self._ask(self._random.choice(active).name)
        self._next()

    def _draw(self) -> dict[str, str | None]:
        """Some settings and their values; None: unset."""
        chance, layout = self._random, self.world.layout
        names = [name for name in _VALUES if name != _POLICY or self.world.compacts]
        some = chance.sample(names, chance.choice((1, 1, 2, 4)))
        if self.world.compacts and chance.random() < 0.3:
            some = [*some, _POLICY]
        changes: dict[str, str | None] = {
            name: None if chance.random() < 0.15 else chance.choice(_VALUES[name]) for name in some
        }
        if layout.min_isr <= layout.factor and chance.random() < 0.2:
            # No fewer than before: what may be lost at a time depends on it.
            changes[_MIN_ISR] = str(chance.randrange(layout.fewest, layout.factor + 1))
        changes.update(self.limits.draw())
        changes[_MARK] = str(2**62 + self.count)
        return changes

    def _ask(self, name: str) -> None:
        changes, number = self._draw(), self.world.next_request()
        asked = next(one for one in self.world.controllers.values() if one.name == name)
        request = cc.AlterConfigs(
            request_id=number,
            cluster_id=self.world.cluster_id,
            topic=self._topic,
            set_configs={key: value for key, value in changes.items() if value is not None},
            unset_configs=tuple(key for key, value in changes.items() if value is None),
        )
        before = self._settings.values
        self._settings.asked(changes)
        self._waiting = number
        self.world.scheduler.note("changes", "asks", name, number, changes)

        def answered(answer: object) -> None:
            if self._waiting != number:
                return
            self._waiting = 0
            self.world.scheduler.note("changes", "is answered", number, answer)
            if self.world.journal and asked.is_deposed:
                return  # what it has stored may be replaced (ADR 29, Price)
            if isinstance(answer, cc.Done):
                self._settings.accepted(changes)
            elif isinstance(answer, PenstockError) and answer.applied is Applied.NO:
                self._settings.refused(before)

        asked.request(request, answered)
        self.world.scheduler.after(PATIENCE_MS, answered, None)

    # ------------------------------------------------------------ the end

    def unsettled(self) -> str:
        """Who has not heard of the newest settings; "": everybody has."""
        config = self._known()
        for key in self.world.keys:
            for broker in self.world.members(key):
                replica = broker.replicas.get(key)
                if replica is not None and config is not None and replica.config != config:
                    return f"{broker.name} has the settings {replica.config} of {key}, not {config}"
        return "" if config is not None else "nobody knows the topic's settings"

    def check_end(self) -> None:
        """What was answered is what is stored."""
        self._settings.check(self._configs() or {}, self._topic)
        self.tombstones.check_end()

    def _configs(self) -> Mapping[str, str] | None:
        for controller in self.world.controllers.values():
            topic = controller.topic(self._topic)
            if topic is not None:
                return topic.configs
        return None

    def _known(self) -> TopicConfig | None:
        configs = self._configs()
        return None if configs is None else ControlConfig().topic_config(configs)

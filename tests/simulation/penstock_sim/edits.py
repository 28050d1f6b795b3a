"""Somebody changes the metadata store by hand: deletes a topic's document, applies an older one.

    edit ─▶ the active controller looks, or meets a conflict ─▶ it writes again what is right
        ─▶ or it is asked to stop: it looks once more, then another one takes over

Nothing is promised when a controller ends before it has looked: the next one believes what is
stored. So nothing is edited once one was asked to stop, and nothing else happens to controllers and
their store in these histories.

Edits come from a generator of their own, and only in histories that want them: the others are what
they were.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.core.control.documents import TOPIC_KEY_PREFIX

if TYPE_CHECKING:
    from penstock_sim.controller import ControllerShell, SimController
    from penstock_sim.world import World

LOOK_S: Final = 1.0
"""How often a controller looks, on its own clock: 125 ms of a history."""
UNHARMED: Final = ("kill_controller", "second_controller", "store_away", "slow_store")
"""What the nemesis leaves alone."""
_STOPPED: Final = 0.4
"""So often the controller is asked to stop soon after an edit."""
_LOOK_MS: Final = 2


class Edits:
    """Of one history."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._random = world.scheduler.generator("edits")
        self._pace_ms = self._random.uniform(30, 150)
        self._older: dict[str, str] = {}
        self.count = 0
        self.handed_over = 0

    def start(self) -> None:
        """Once the partitions are there."""
        self.world.scheduler.at_pace(self._random, self._pace_ms, self._act)

    def _act(self) -> None:
        if not self.world.chaotic:
            return
        controllers = self.world.controllers.values()
        deciding = [one for one in controllers if one.active and not one.is_leaving]
        if deciding:
            self._edit()
            if self._random.random() < _STOPPED:
                delay_ms = self._random.uniform(0.1, 40)
                self.world.scheduler.after(delay_ms, self._stop, deciding[0], deciding[0].shell)
        self.start()

    def _edit(self) -> None:
        documents = self.world.meta.documents
        topics = sorted(key for key in documents if key.startswith(TOPIC_KEY_PREFIX))
        if not topics:
            return
        key = self._random.choice(topics)
        now, older = documents[key].text, self._older.get(key)
        if older is None or self._random.random() < 0.3:
            self._older[key] = now
            return
        how = self._random.choice(("delete", "label", "apply an older one"))
        if how == "delete":
            self.world.meta.delete_by_hand(key)
        else:
            self.world.meta.put_by_hand(key, now if how == "label" else older)
        self.world.scheduler.note("somebody", how, key)
        self.count += 1

    def _stop(self, controller: SimController, shell: ControllerShell | None) -> None:
        if shell is not None and controller.shell is shell and self.world.chaotic:
            self.world.scheduler.note(controller.name, "is asked to stop")
            shell.loop.run(shell.process.stop_requested.set)
            self._succeed(controller, shell)

    def _succeed(self, controller: SimController, shell: ControllerShell) -> None:
        """Once it has ended, another one starts."""
        if controller.shell is not shell:
            return
        if not shell.running.done():
            self.world.scheduler.after(_LOOK_MS, self._succeed, controller, shell)
            return
        controller.kill()
        self.handed_over += 1
        self._random.choice(list(self.world.controllers.values())).start()

"""InitProducer of plain producers under simulation: new ids, and the next epoch of one's own.

    producer ─ has none, or doubts ─▶ any broker ─ next epoch, by the production rule ─▶ answer
                                        └ a new id: from a block that the controller gave it

The broker's side is production's; the producer asks as the client's sender does, until it is
answered. Now and then one names an identity that it has seen somewhere else, of a producer of
transactions: that is refused, and whatever is granted is nobody else's (I10, D12).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from penstock.core.types import NO_PRODUCER, ProducerId
from penstock.errors import PenstockError
from penstock.proto.v1 import broker_pb2 as pb
from penstock.rpc.errors import error_from_wire

if TYPE_CHECKING:
    from penstock_sim.broker import SimBroker
    from penstock_sim.world import World

Identity = tuple[ProducerId, int]
NOBODY: Final[Identity] = (NO_PRODUCER, -1)
_CLIENT_NODE: Final = 700
_TIMEOUT_MS: Final = 120


def init(broker: SimBroker, known: Identity, respond: Callable[[Any], None]) -> None:
    """`respond` gets an identity or an error, or nothing when the broker dies."""
    shell = broker.shell
    if shell is None:
        return
    producer_id, producer_epoch = known
    request = pb.InitProducerRequest(producer_id=producer_id, producer_epoch=producer_epoch)

    async def answer() -> None:
        refusal = shell.view.refusal()
        if refusal is not None:
            respond(refusal)
            return
        found = await shell.producer_ids.init(request)
        if found.HasField("error"):
            respond(error_from_wire(found.error))
        else:
            respond((ProducerId(found.producer_id), found.producer_epoch))

    shell.start(answer)


class Identifying:
    """One producer's request: asked until there is an identity."""

    def __init__(
        self, world: World, name: str, known: Identity, granted: Callable[[Identity], None]
    ) -> None:
        self._world = world
        self._name = name
        self._known = known
        self._granted = granted
        self._attempt = 0
        self._ask()

    def _ask(self) -> None:
        world = self._world
        self._attempt += 1
        attempt, node = self._attempt, _CLIENT_NODE + int(self._name[1:].partition(".")[0])
        broker = world.scheduler.random.choice(list(world.brokers.values()))
        known = self._foreign() or self._known

        def respond(answer: Any) -> None:
            world.net.call(int(broker.id), node, self._answered, attempt, answer)

        world.net.call(node, int(broker.id), init, broker, known, respond)
        world.scheduler.after(_TIMEOUT_MS, self._ask_again, attempt)

    def _foreign(self) -> Identity | None:
        """Somebody else's, which a program has mixed up with its own."""
        seen = self._world.transaction_checks.newest_granted
        return seen if seen is not None and self._world.scheduler.chance(0.3) else None

    def _ask_again(self, attempt: int) -> None:
        if attempt == self._attempt:
            self._ask()

    def _answered(self, attempt: int, answer: Identity | PenstockError) -> None:
        if attempt != self._attempt:
            return
        self._world.scheduler.note(self._name, "is identified", answer)
        if isinstance(answer, PenstockError):
            pause_ms = self._world.scheduler.between(5, 50)
            self._world.scheduler.after(pause_ms, self._ask_again, attempt)
            return
        self._attempt += 1
        self._world.transaction_checks.granted(answer, self._name)
        self._granted(answer)

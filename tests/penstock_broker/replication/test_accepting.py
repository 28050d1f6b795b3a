"""A person gives up batches: only what nobody has, only where nobody sound could lead."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from support.damaged_replica import BATCHES, KEY, World, mended, until

from penstock.core.batch import Batch, BatchHeader
from penstock.core.replication.losses import emptied
from penstock.core.types import BrokerId, Offset, ReplicaKey
from penstock.errors import ClusterError, ErrorCode
from penstock_broker.replication.accepting import Loss, Losses

ALONE: dict[str, Any] = {"leader": 0, "replicas": [0, 1, 2], "isr": [0], "damaged": [0, 1, 2]}


class Controller:
    """Stores at once, as `version`."""

    def __init__(self) -> None:
        self.version = 2
        self.asked: list[ReplicaKey] = []
        self.error: ClusterError | None = None

    async def confirm_damage(self, key: ReplicaKey) -> int:
        self.asked.append(key)
        if self.error is not None:
            raise self.error
        return self.version


class Case:
    """Offset 3 and offset 7 are lost at broker 0, which leads."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.controller = Controller()
        self.silent: dict[int, ErrorCode] = {}
        self.losses = Losses(world.replicas, world.view, world.mending, self, self.controller)

    async def exact(self, broker_id: BrokerId, key: ReplicaKey, header: BatchHeader) -> Batch:
        if broker_id in self.silent:
            raise ClusterError("not now", self.silent[broker_id])
        return await self.world.others.exact(broker_id, key, header)

    async def close(self) -> None:
        """Nothing to close."""

    async def accept(self, first: int, last: int, *without: int, dry: bool = False) -> list[int]:
        loss = Loss(Offset(first), Offset(last), frozenset(map(BrokerId, without)))
        given_up = await self.losses.accept(self.world.replica, loss, validate_only=dry)
        return [header.base_offset for header in given_up]

    async def refused(self, *asked: int, match: str) -> ErrorCode:
        with pytest.raises(ClusterError, match=match) as caught:
            await self.accept(*asked)
        assert self.world.disk.lost == {3, 7}, "nothing was given up"
        return caught.value.code


@asynccontextmanager
async def lost(**partition: Any) -> AsyncIterator[Case]:
    async with mended(**(partition or ALONE)) as world:
        world.disk.lost = {3, 7}
        world.found()
        await until(lambda: world.mending.lost(KEY) is not None, "it knows what is lost")
        yield Case(world)


async def test_what_nobody_has_is_emptied_and_the_leader_goes_on() -> None:
    async with lost() as case:
        before = case.world.replica
        assert await case.accept(3, 3, dry=True) == [3]
        assert case.world.disk.lost == {3, 7}
        assert await case.accept(3, 3) == [3]
        assert await case.accept(0, 19) == [7], "the rest; 3 was given up before"
        await until(lambda: not case.world.replicas.damage.found, "nothing else is damaged")
        assert await case.accept(0, 19) == []
        found = case.world.disk.read(before.slot, Offset(0), 1 << 20, Offset(20))
        expected = list(BATCHES)
        for offset in (3, 7):
            expected[offset] = emptied(BATCHES[offset].header)
        assert found == expected
        assert case.world.replica is before
        assert before.machine.error is None
        assert before.marks.high_watermark == 20
        assert case.controller.asked == [KEY] * 3


async def test_what_another_broker_has_is_not_given_up() -> None:
    async with lost() as case:
        case.world.others.has[2] = {7: BATCHES[7]}
        await case.refused(0, 19, match="broker 2 has offsets 7-7")
        await case.refused(7, 7, 2, match="broker 2 has offsets 7-7")


async def test_who_says_nothing_may_have_it_unless_he_is_named() -> None:
    async with lost() as case:
        for code in (ErrorCode.UNKNOWN_PARTITION, ErrorCode.STORAGE_FAILED):
            case.silent = {2: code}
            await case.refused(3, 3, match="--without 2")
            await case.refused(3, 3, 1, match="--without 2")
        assert await case.accept(3, 3, 2) == [3]


async def test_who_may_have_it_compacted_forbids_it_and_who_has_nothing_does_not() -> None:
    async with lost(leader=0, replicas=[0, 1, 2], isr=[0], damaged=[0, 1]) as case:
        await case.refused(3, 3, match="in another form, compacted")
        await case.refused(3, 3, 1, match="--without 2")
        assert await case.accept(3, 3, 2) == [3]
        case.silent = {2: ErrorCode.OFFSET_OUT_OF_RANGE}
        assert await case.accept(7, 7) == [7]


async def test_a_member_of_the_isr_that_is_not_damaged_forbids_it() -> None:
    async with lost(leader=0, replicas=[0, 1, 2], isr=[0, 1]) as case:
        await case.refused(3, 3, match="broker 1 has a replica")


async def test_the_controllers_word_is_asked_for_first() -> None:
    async with lost() as case:
        case.controller.error = ClusterError("away", ErrorCode.CONTROLLER_UNAVAILABLE)
        assert await case.refused(3, 3, match="away") is ErrorCode.CONTROLLER_UNAVAILABLE


async def test_who_was_deposed_meanwhile_gives_up_nothing() -> None:
    async with lost() as case:

        async def deposed() -> None:
            case.world.others.meanwhile = None
            await case.world.image(3, leader_epoch=3, **{**ALONE, "leader": 1, "isr": [1]})

        case.world.others.meanwhile = deposed
        code = await case.refused(3, 3, match="has changed meanwhile")
        assert code is ErrorCode.NOT_LEADER


@pytest.mark.parametrize("offsets", [(5, 4), (-1, 3), (3, 20)])
async def test_only_committed_offsets_can_be_given_up(offsets: tuple[int, int]) -> None:
    async with lost() as case:
        await case.refused(*offsets, match="high watermark 20")


async def test_a_log_that_could_not_be_opened_has_no_offsets_to_give_up() -> None:
    async with lost() as case:
        case.world.replica.is_opened = False
        await case.refused(3, 3, match="could not be opened")


async def test_a_log_of_which_not_all_is_known_names_no_loss() -> None:
    async with lost() as case:
        case.world.mending._cases[KEY].hopeless = "the index cannot be read"
        await case.refused(5, 6, match="the index cannot be read")
        del case.world.mending._cases[KEY]
        await case.refused(3, 3, match="is being read")

"""The sync admin's calls about consumer groups: `admin.groups`, driven from the loop thread."""

from collections.abc import Iterable, Mapping

from penstock.client.admin.admin import AsyncAdmin
from penstock.client.group.model import GroupDescription, GroupListing, GroupState, OffsetChange
from penstock.client.sync.loop_thread import LoopThread
from penstock.core.lag import PartitionLag
from penstock.core.offset_reset import Move, ResetTo
from penstock.core.types import TopicPartition


class SyncGroupAdministration:
    """The part of Admin that is about groups; see GroupAdministration."""

    _loop: LoopThread
    _core: AsyncAdmin

    def list_groups(self, states: Iterable[GroupState] = ()) -> list[GroupListing]:
        """All groups, or those in one of these states, by name."""
        return self._loop.run(self._core.list_groups(states))

    def describe_group(self, group_id: str, *, include_offsets: bool = True) -> GroupDescription:
        """Members, partitions and committed offsets."""
        return self._loop.run(self._core.describe_group(group_id, include_offsets=include_offsets))

    def group_lag(self, group: str | GroupDescription) -> dict[TopicPartition, PartitionLag]:
        """How far behind the group is in every partition it reads or has read."""
        return self._loop.run(self._core.group_lag(group))

    def plan_reset(
        self, to: ResetTo, committed: Mapping[TopicPartition, int], *, clamp: bool = False
    ) -> dict[TopicPartition, Move]:
        """Where `to` moves these partitions; committed -1 = nothing is."""
        return self._loop.run(self._core.plan_reset(to, committed, clamp=clamp))

    def reset_offsets(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, int],
        *,
        reset_id: str = "",
        reason: str = "",
        dry_run: bool = False,
    ) -> dict[TopicPartition, OffsetChange]:
        """Sets committed offsets of a group without members: all or none."""
        return self._loop.run(
            self._core.reset_offsets(
                group_id, offsets, reset_id=reset_id, reason=reason, dry_run=dry_run
            )
        )

    def delete_group(self, group_id: str) -> None:
        """Forgets a group without members, and its offsets."""
        self._loop.run(self._core.delete_group(group_id))

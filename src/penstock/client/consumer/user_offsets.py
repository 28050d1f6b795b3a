"""Offsets that a user wants to have committed: checked before anything is sent."""

from collections.abc import Mapping

from penstock.client.cluster.cluster import Cluster
from penstock.client.cluster.leaders import known_partition, list_offsets
from penstock.client.consumer.assignment import Assignment
from penstock.client.group.model import OffsetAndMetadata
from penstock.client.model import LATEST
from penstock.core.limits import COMMIT_METADATA_MAX_BYTES
from penstock.core.types import TopicPartition
from penstock.errors import ErrorCode, MisuseError


class UserOffsets:
    """Of one consumer."""

    def __init__(self, cluster: Cluster, assignment: Assignment, timeout_s: float) -> None:
        """`timeout_s`: for asking leaders where logs end."""
        self._cluster = cluster
        self._assignment = assignment
        self._timeout_s = timeout_s

    async def checked(
        self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata]
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """The user's offsets in the form in which they are stored; raises MisuseError for invalid
        ones."""
        wanted = {
            where: OffsetAndMetadata(offset) if isinstance(offset, int) else offset
            for where, offset in offsets.items()
        }
        for where, offset in wanted.items():
            await known_partition(self._cluster, where)
            if not 0 <= offset.offset < 2**63:
                raise MisuseError(
                    f"{where}: cannot commit offset {offset.offset}; it must be 0 to 2^63 - 1"
                )
            if not -1 <= offset.leader_epoch < 2**31:
                raise MisuseError(
                    f"{where}: cannot commit leader epoch {offset.leader_epoch}; it must be "
                    "-1 to 2^31 - 1"
                )
            _check_metadata(where, offset.metadata)
        await self._check_ends({where: offset.offset for where, offset in wanted.items()})
        return wanted

    async def _check_ends(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Asks the leaders about offsets that this consumer has not reached; the coordinator cannot
        check them."""
        states = self._assignment.states
        asked = {
            where: LATEST
            for where, offset in offsets.items()
            if where not in states or offset > (states[where].position or 0)
        }
        if not asked:
            return
        ends = await list_offsets(self._cluster, asked, self._timeout_s)
        for where, end in ends.items():
            if offsets[where] > end.offset:
                raise MisuseError(
                    f"{where}: cannot commit offset {offsets[where]}; the log ends at {end.offset}",
                    ErrorCode.OFFSET_OUT_OF_RANGE,
                )


def _check_metadata(where: TopicPartition, metadata: str) -> None:
    try:
        size = len(metadata.encode())
    except UnicodeEncodeError as error:
        raise MisuseError(
            f"{where}: the metadata {metadata[:40]!r} cannot be stored as UTF-8 ({error.reason} at "
            f"character {error.start}); give other text"
        ) from None
    if size > COMMIT_METADATA_MAX_BYTES:
        raise MisuseError(
            f"{where}: the metadata has {size} bytes, the limit is {COMMIT_METADATA_MAX_BYTES}"
        )

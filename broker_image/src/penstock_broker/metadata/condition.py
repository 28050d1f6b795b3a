"""What a broker's heartbeats say of the broker itself."""

from dataclasses import dataclass

from penstock.proto.v1 import controller_pb2 as pb


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """`disk_full`: writes are refused. `no_space_for_copies`: no partition may move here. `copies`:
    how far they are, of the partitions that this broker leads."""

    disk_full: bool = False
    no_space_for_copies: bool = False
    copies: tuple[pb.CopyProgress, ...] = ()

"""A controller's journal on the wire and back."""

from penstock.core.control.journal.contract import Journal
from penstock.core.types import ControllerEpoch
from penstock.proto.v1 import journal_pb2 as pb


def journal_to_wire(journal: Journal) -> pb.Journal:
    """Every field."""
    return pb.Journal(
        controller_epoch=journal.controller_epoch,
        sequence=journal.sequence,
        documents=dict(journal.documents),
        removed=dict(journal.removed),
    )


def journal_from_wire(message: pb.Journal) -> Journal:
    """Every field; one that was never set is the empty journal of epoch 0."""
    return Journal(
        ControllerEpoch(message.controller_epoch),
        message.sequence,
        dict(message.documents),
        dict(message.removed),
    )

"""The table of errors and the protocol say the same, of every code and all it implies."""

from dataclasses import fields

import pytest

from penstock.client.producer.lane import Lane
from penstock.core.types import ProducerId, ProducerIdentity
from penstock.errors import (
    TRAITS,
    Applied,
    ClusterError,
    ErrorCode,
    Lost,
    StaleDataDirectoryError,
    Traits,
)
from penstock.proto.v1 import errors_pb2 as pb
from penstock.rpc.errors import error_from_wire, error_to_wire

FIRST_CLIENT_CODE = 1000
WIRE = {value.number: value for value in pb.ErrorCode.DESCRIPTOR.values}


def traits_on_the_wire(code: int) -> pb.ErrorTraits:
    options = WIRE[code].GetOptions()
    assert options.HasExtension(pb.traits), f"{WIRE[code].name} has no traits in errors.proto"
    return options.Extensions[pb.traits]


def test_the_protocol_has_exactly_the_codes_below_a_thousand() -> None:
    known = {f"ERROR_CODE_{code.name}": code.value for code in ErrorCode if code < 1000}
    assert {value.name: number for number, value in WIRE.items()} == known


def test_every_trait_is_in_the_protocol() -> None:
    described = {field.name for field in pb.ErrorTraits.DESCRIPTOR.fields}
    assert described == {field.name for field in fields(Traits)}


@pytest.mark.parametrize("code", ErrorCode)
def test_every_code_has_traits_and_says_whether_the_attempt_can_have_had_an_effect(
    code: ErrorCode,
) -> None:
    traits = TRAITS[code]
    assert isinstance(traits.applied, Applied)
    if code >= FIRST_CLIENT_CODE:
        return
    wire = traits_on_the_wire(code)
    assert wire.applied != pb.APPLIED_UNSPECIFIED, "say so in errors.proto; there is no default"
    assert traits == Traits(
        grpc_code=wire.grpc_code,
        applied=Applied(wire.applied),
        retriable=wire.retriable,
        refresh_metadata=wire.refresh_metadata,
        names_leader=wire.names_leader,
        lost=Lost(wire.lost),
    )


@pytest.mark.parametrize("code", ErrorCode)
def test_a_lane_calls_an_outcome_unknown_exactly_when_the_code_does(code: ErrorCode) -> None:
    lane: Lane[str] = Lane(max_in_flight=5, idempotent=True, backoff_ms=1, backoff_max_ms=1)
    lane.adopt(ProducerIdentity(ProducerId(7), 0))
    entry = lane.take("a", 1, 99)
    lane.failed(entry, ClusterError(code.name, code), 0)
    assert entry.unknown == (TRAITS[code].applied is Applied.MAYBE)


def test_what_a_topic_does_not_take_is_certainly_not_in_the_log() -> None:
    assert ClusterError("no key", ErrorCode.INVALID_RECORD).applied is Applied.NO


def test_a_refusal_of_an_older_data_directory_carries_the_newest_generation() -> None:
    found = error_from_wire(error_to_wire(StaleDataDirectoryError("It is older", "newest")))
    assert isinstance(found, StaleDataDirectoryError)
    assert (str(found), found.generation) == ("It is older", "newest")

"""The table of what calls need: it names every method there is, and nothing else."""

import pytest
from google.protobuf import descriptor_pool

from penstock.core.authorization.model import OPERATIONS
from penstock.proto.v1 import (
    admin_pb2,
    broker_pb2,
    controller_pb2,
    enrolment_pb2,
    group_pb2,
    journal_pb2,
    replication_pb2,
    transaction_pb2,
    transaction_peer_pb2,
)
from penstock_broker.broker.listeners import PUBLIC_SERVICES
from penstock_broker.serving.calls import BY_METHOD, CALLS, Call, Who
from penstock_broker.serving.request_limits import REQUEST_LIMITS


def methods() -> set[str]:
    """Of all services in our packages' files."""
    files = (
        admin_pb2,
        broker_pb2,
        controller_pb2,
        enrolment_pb2,
        group_pb2,
        journal_pb2,
        replication_pb2,
        transaction_pb2,
        transaction_peer_pb2,
    )
    return {
        f"{service.name}.{method.name}"
        for file in files
        for service in file.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }


def test_every_method_is_in_the_table_and_nothing_else() -> None:
    assert CALLS.keys() == methods() == REQUEST_LIMITS.keys()
    assert len(BY_METHOD) == len(CALLS), "the edge knows methods by their own names"


def test_what_users_call_is_what_public_ports_offer() -> None:
    public = {name.rpartition(".")[2] for name in PUBLIC_SERVICES}
    for name, call in CALLS.items():
        assert (call.who is Who.SERVERS) == (name.partition(".")[0] not in public), name


@pytest.mark.parametrize("name", sorted(CALLS))
def test_needs_make_sense(name: str) -> None:
    call: Call = CALLS[name]
    for need in (*call.edge, *call.parts):
        assert need.operation in OPERATIONS[need.kind]
    assert all(need.names is not None for need in call.edge)
    assert all(need.names is None for need in call.parts)
    if call.who is Who.USERS:
        assert call.edge or call.parts, "what needs nothing is open"


@pytest.mark.parametrize("name", sorted(CALLS))
def test_names_are_found_in_an_empty_request(name: str) -> None:
    service, _, method = name.partition(".")
    found = descriptor_pool.Default().FindMethodByName(f"penstock.proto.v1.{service}.{method}")
    module = next(
        one
        for one in (
            admin_pb2,
            broker_pb2,
            controller_pb2,
            enrolment_pb2,
            group_pb2,
            journal_pb2,
            replication_pb2,
            transaction_pb2,
            transaction_peer_pb2,
        )
        if found.input_type.name in one.DESCRIPTOR.message_types_by_name
    )
    request = getattr(module, found.input_type.name)()
    for need in CALLS[name].edge:
        assert need.names is not None
        assert all(isinstance(each, str) for each in need.names(request))

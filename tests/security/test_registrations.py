"""Brokers that are none: what they register is stored, and sent to every broker."""

from typing import Any

import grpc
import pytest
from support.channels import patient_channel
from support.cluster import Cluster

from penstock.core.control.documents import FORMATS
from penstock.core.types import BrokerId
from penstock.errors import ErrorCode, PenstockError
from penstock.proto.v1 import controller_pb2 as pb
from penstock.proto.v1.controller_pb2_grpc import ControllerServiceStub
from penstock.rpc.errors import error_from_rpc, error_from_wire


def register(address: str, **fields: Any) -> PenstockError:
    """How the controller refuses it."""
    mine = {
        "broker_id": 7,
        "incarnation": "i",
        "directory_id": "d",
        "host": "127.0.0.1",
        "port": 1,
        "formats": FORMATS,
        **fields,
    }
    request = pb.SessionRequest(register=pb.Register(**mine))
    with patient_channel(address) as channel:
        answers = ControllerServiceStub(channel).Session(iter([request]), timeout=20)
        try:
            for answer in answers:
                if answer.HasField("error"):
                    return error_from_wire(answer.error)
        except grpc.RpcError as error:
            return error_from_rpc(error)
    raise AssertionError("it was accepted")


@pytest.mark.parametrize("name", ["rack", "host", "external_host", "incarnation", "directory_id"])
def test_endless_texts_are_refused(cluster: Cluster, name: str) -> None:
    error = register(cluster.controller.address, **{name: "x" * 10_000})
    assert error.code is ErrorCode.INVALID_REQUEST
    assert f"registers with {name} 'xxxxxxxx" in error.message
    assert "of 10000 characters; it must have at most" in error.message
    error = register(cluster.controller.address, **{name: "x" * 1_000_000})
    assert "bytes, the limit is 262144" in error.message
    assert {info.broker_id for info in cluster.metadata().brokers} == {BrokerId(0)}


def test_features_without_end_are_refused(cluster: Cluster) -> None:
    error = register(cluster.controller.address, features=["x"] * 1_000)
    assert "names 1000 features, the longest with 1 characters; the limits are 16" in error.message

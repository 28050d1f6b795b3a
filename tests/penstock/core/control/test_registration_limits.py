"""What a broker may register with: all of it is kept in one document, and sent to every broker."""

from typing import Any

import pytest
from support.controller_world import World

from penstock.core.control import registration
from penstock.core.control.documents import encode_cluster
from penstock.core.types import BrokerId
from penstock.errors import ErrorCode, PenstockError


def refusal(world: World, **fields: Any) -> PenstockError:
    error = world.refusal(world.register(0, **fields))
    assert isinstance(error, PenstockError)
    assert BrokerId(0) not in world.cluster().brokers
    return error


@pytest.mark.parametrize(
    ("name", "limit"),
    [
        ("host", 253),
        ("external_host", 253),
        ("rack", 128),
        ("incarnation", 64),
        ("directory_id", 64),
    ],
)
def test_texts_have_a_length(world: World, name: str, limit: int) -> None:
    error = refusal(world, external_port=1, **{name: "x" * (limit + 1)})
    assert error.code is ErrorCode.INVALID_REQUEST
    assert error.message == (
        f"broker 0 registers with {name} {'x' * 40!r} of {limit + 1} characters; it must have at "
        f"most {limit}, all printable{'' if name == 'rack' else ' and of ASCII'}"
    )
    assert "all printable" in refusal(world, **{name: "a\nb"}).message
    if name != "rack":
        assert "of ASCII" in refusal(world, **{name: "ß"}).message
    longest: dict[str, Any] = {"external_port": 1, name: "x" * limit}
    world.register(0, **longest)
    assert BrokerId(0) in world.cluster().brokers


def test_features_have_a_number_and_a_length(world: World) -> None:
    names = tuple(f"feature-{number}" for number in range(17))
    assert "names 17 features" in refusal(world, features=names).message
    assert "all of ASCII" in refusal(world, features=("ß",)).message
    assert "the longest with 33 characters" in refusal(world, features=("x" * 33,)).message
    world.register(0, features=(*names[:15], "x" * 32))
    assert BrokerId(0) in world.cluster().brokers


def test_a_cluster_has_so_many_brokers_and_those_it_has_come_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registration, "BROKERS_MAX", 2)
    world.register_all(1, 2)
    error = refusal(world)
    assert error.message == (
        "broker 0 is new, and the cluster has 2 registered brokers, the limit is 2; unregister "
        "those that no longer exist"
    )
    world.register(2, run=2)
    assert world.cluster().brokers[BrokerId(2)].incarnation == "run-2-2"


def test_a_full_cluster_fits_into_a_kubernetes_object(world: World) -> None:
    long: dict[str, Any] = {
        "host": "h" * 253,
        "external_host": "e" * 253,
        "external_port": 65_535,
        "rack": "ß" * 128,
        "incarnation": "i" * 64,
        "directory_id": "d" * 64,
        "features": tuple("f" * 31 + chr(65 + number) for number in range(16)),
    }
    world.register(0)
    empty = len(encode_cluster(world.cluster()))
    world.register(1, **long)
    one = len(encode_cluster(world.cluster())) - empty
    assert empty + one * registration.BROKERS_MAX < 900 * 1024

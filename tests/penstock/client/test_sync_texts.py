"""`help()` of the sync clients needs no other page."""

import inspect
import pydoc

import pytest

from penstock.client import (
    Admin,
    AsyncProducer,
    Branches,
    Consumer,
    Out,
    Producer,
    Transformer,
    WorkerPool,
    transform,
)
from penstock.client.sync.producer import Transaction

CLIENTS = [Admin, Branches, Consumer, Out, Producer, Transaction, Transformer, WorkerPool]


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.__name__)
def test_no_text_sends_the_reader_to_the_async_client(client: type) -> None:
    assert "Async" not in (client.__doc__ or "")
    for name, member in inspect.getmembers(client):
        if name.startswith("_") or not (inspect.isfunction(member) or isinstance(member, property)):
            continue
        text = inspect.getdoc(member) or ""
        assert "Async" not in text, name
    assert "Async" not in (transform.__doc__ or "")


@pytest.mark.parametrize("client", [Producer, Consumer, Admin, Transformer])
def test_settings_are_shown_by_name(client: type) -> None:
    shown = pydoc.plain(pydoc.render_doc(client))
    assert "**options" not in shown.split("Methods defined here")[0]
    assert "request_timeout_ms" in str(inspect.signature(client))
    assert "request_timeout_ms: Timeout of one remote call" in (client.__doc__ or "")


def test_a_method_says_what_its_namesake_says() -> None:
    assert "RECORD_TOO_LARGE with size and limit" in (Producer.send.__doc__ or "")
    assert "No serializer is applied" in (Producer.send_columns.__doc__ or "")
    assert "linger_ms" in (Producer.__doc__ or "")
    assert AsyncProducer.send.__doc__ != Producer.flush.__doc__

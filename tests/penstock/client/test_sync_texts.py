"""`help()` of clients needs no other page: settings by name, and no reference to a namesake."""

import inspect
import pydoc
import re

import pytest

from penstock import client
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

WITH_SETTINGS = [
    *("Producer", "Consumer", "Admin", "Transformer", "transform"),
    *("AsyncProducer", "AsyncConsumer", "AsyncAdmin", "AsyncTransformer", "async_transform"),
]
OTHERS = {"bootstrap", "config", "handle"}
CLIENTS = [Admin, Branches, Consumer, Out, Producer, Transaction, Transformer, WorkerPool]


@pytest.mark.parametrize("kind", CLIENTS, ids=lambda kind: kind.__name__)
def test_no_text_sends_the_reader_to_the_async_client(kind: type) -> None:
    assert "Async" not in (kind.__doc__ or "")
    for name, member in inspect.getmembers(kind):
        if name.startswith("_") or not (inspect.isfunction(member) or isinstance(member, property)):
            continue
        text = inspect.getdoc(member) or ""
        assert "Async" not in text, name
    assert "Async" not in (transform.__doc__ or "")


def test_no_help_hides_settings() -> None:
    things = {name: getattr(client, name) for name in client.__all__}
    shown = {name: pydoc.plain(pydoc.render_doc(it)) for name, it in things.items() if callable(it)}
    assert len(shown) > 100
    assert not [name for name, text in shown.items() if re.search(r"\*\*(options|more)\b", text)]


@pytest.mark.parametrize("name", WITH_SETTINGS)
def test_what_takes_settings_says_what_they_mean(name: str) -> None:
    text = inspect.getdoc(getattr(client, name)) or ""
    settings = set(inspect.signature(getattr(client, name)).parameters) - OTHERS
    assert "request_timeout_ms" in settings
    for setting in settings:
        assert f"\n    {setting}: " in text, setting


def test_a_method_says_what_its_namesake_says() -> None:
    assert "RECORD_TOO_LARGE with size and limit" in (Producer.send.__doc__ or "")
    assert "No serializer is applied" in (Producer.send_columns.__doc__ or "")
    assert "linger_ms" in (Producer.__doc__ or "")
    assert AsyncProducer.send.__doc__ != Producer.flush.__doc__

"""Tests of the arguments and options of `postgres:`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

import pytest
from twisted.internet.defer import maybeDeferred
from twisted.internet.task import Clock
from zope.interface.verify import verifyObject

from kestrel.config.model import QueueSettings
from kestrel.errors import BadStorageArgument
from kestrel.storage.interfaces import IStorage, IStorageFactory
from kestrel.storage.postgres.factory import PostgresStorageFactory
from kestrel.storage.total_memory import MemoryLimit
from kestrel.testing.postgres import PrivateServer
from tests.storage.postgres.batches import fired


def storage(argument: str, **options: str) -> IStorage:
    """Return the storage that the factory creates."""
    return PostgresStorageFactory().storage(argument, options, Clock(), maybeDeferred, MemoryLimit())


def test_provides_its_interface() -> None:
    assert verifyObject(IStorageFactory, PostgresStorageFactory())


@pytest.mark.database
@pytest.mark.needs("postgresql")
@pytest.mark.parametrize("is_url", [False, True])
def test_connection_string_may_be_a_url_or_keywords_with_options(server: PrivateServer, is_url: bool) -> None:
    options = {"host": str(server.folder), "user": "postgres", "schema": f"by url {is_url}", "timeout": "10s"}
    queues = storage("postgresql:///postgres" if is_url else "dbname=postgres", **options)
    assert fired(queues.start(lambda name: QueueSettings())) == {}
    fired(queues.close())


def test_storage_does_not_connect_before_it_starts(tmp_path: Path) -> None:
    assert verifyObject(IStorage, storage(f"host={tmp_path}/nowhere dbname=none"))


@pytest.mark.parametrize(
    ("argument", "options", "sentence"),
    [
        ("", {}, "postgres: needs a connection string, as in postgres:host="),
        ("secret is no such thing", {}, "postgres: the argument is not a PostgreSQL connection string"),
        ("postgresql://me:secret@[host/db", {}, "postgres: the argument is not a PostgreSQL connection string"),
        ("dbname=x hots=db1", {}, "postgres: a PostgreSQL connection has no parameter hots"),
        ("dbname=x", {"shcema": "secret"}, "postgres: has no option shcema; it takes schema, timeout and"),
        ("dbname=x password=secret", {}, "postgres: a password is not accepted here"),
        ("postgresql://me:secret@host/db", {}, "postgres: a password is not accepted here"),
        ("dbname=x", {"sslpassword": "secret"}, "postgres: a password is not accepted here"),
        ("dbname=x", {"scram_client_key": "secret"}, "postgres: a password is not accepted here"),
        ("dbname=x", {"schema": ""}, "postgres: schema needs a name of 1 to 63 bytes"),
        ("dbname=x", {"schema": "s" * 64}, "postgres: schema needs a name of 1 to 63 bytes"),
        ("dbname=x", {"timeout": "9s"}, "postgres: timeout: must be at least 10s"),
        ("dbname=x", {"timeout": "soon"}, "postgres: timeout: "),
    ],
)
def test_invalid_argument_is_refused_without_showing_a_password(
    argument: str, options: Mapping[str, str], sentence: str
) -> None:
    with pytest.raises(BadStorageArgument) as raised:
        storage(argument, **options)
    assert str(raised.value).startswith(sentence)
    assert "secret" not in str(raised.value)


def test_missing_driver_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith(("psycopg", "kestrel.storage.postgres"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    factory = import_module("kestrel.storage.postgres.factory").PostgresStorageFactory()
    with pytest.raises(BadStorageArgument) as raised:
        factory.storage("dbname=x", {}, Clock(), maybeDeferred, MemoryLimit())
    assert str(raised.value).startswith(
        "postgres: needs the library psycopg: pip install 'kestrel-mq[postgres]' (ModuleNotFoundError: "
    )

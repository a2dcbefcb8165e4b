"""Tests of missing rights: the error names the right and a remedy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kestrel.errors import StorageError
from tests.server.storages import ON_POSTGRES
from tests.storage.postgres.batches import Schemas, fired, schema_of

pytestmark = ON_POSTGRES


@pytest.fixture
def weak(schemas: Schemas) -> Iterator[Schemas]:
    """Databases as seen by an account that may only connect."""
    schemas.execute("CREATE ROLE weak LOGIN")
    yield Schemas(f"{schemas.conninfo} user=weak")
    schemas.execute("DROP OWNED BY weak")
    schemas.execute("DROP ROLE weak")


def refusal(schemas: Schemas, folder: Path) -> str:
    """Return the error of opening the queues in a folder's schema."""
    database = schemas.database(folder)
    with pytest.raises(StorageError) as refused:
        fired(database.list_queues())
    fired(database.close())
    return str(refused.value)


def test_missing_right_to_create_a_schema_names_the_command(schemas: Schemas, weak: Schemas, tmp_path: Path) -> None:
    sentence = refusal(weak, tmp_path)
    assert sentence.startswith("weak may not create a schema in this database: its owner has to run CREATE SCHEMA ")
    schemas.execute(sentence.partition(" run ")[2])
    fired(weak.listed(tmp_path).close())


def test_missing_right_to_use_the_schema_is_reported(schemas: Schemas, weak: Schemas, tmp_path: Path) -> None:
    fired(schemas.listed(tmp_path).close())
    name = schema_of(tmp_path)
    assert refusal(weak, tmp_path) == f"weak may not use the schema {name!r}: name another one, as in ?schema=mine"


def test_missing_right_to_create_tables_is_reported(schemas: Schemas, weak: Schemas, tmp_path: Path) -> None:
    name = schema_of(tmp_path)
    schemas.execute(f'CREATE SCHEMA "{name}"')
    schemas.execute(f'GRANT USAGE ON SCHEMA "{name}" TO weak')
    assert refusal(weak, tmp_path).startswith(f"weak may not create tables in schema {name!r}: name another")


def test_schema_with_tables_of_another_program_is_refused(schemas: Schemas, tmp_path: Path) -> None:
    name = schema_of(tmp_path)
    schemas.execute(f'CREATE SCHEMA "{name}"')
    schemas.execute(f'CREATE TABLE "{name}".queues (their_own text)')
    assert refusal(schemas, tmp_path).startswith(f"the schema {name!r} has tables of another program: name another")

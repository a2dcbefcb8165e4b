"""An account that may not do what it has to is told what it lacks, and who can mend it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from batches import Schemas, fired, schema_of
from kestrel.errors import StorageError


@pytest.fixture
def weak(schemas: Schemas) -> Iterator[Schemas]:
    """Databases as an account reaches them that may do nothing but connect."""
    schemas.execute("CREATE ROLE weak LOGIN")
    yield Schemas(f"{schemas.conninfo} user=weak")
    schemas.execute("DROP OWNED BY weak")
    schemas.execute("DROP ROLE weak")


def refusal(schemas: Schemas, folder: Path) -> str:
    """Why the queues in that schema cannot be had."""
    database = schemas.database(folder)
    with pytest.raises(StorageError) as refused:
        fired(database.list_queues())
    fired(database.close())
    return str(refused.value)


def test_who_may_make_no_schema_is_told_what_to_ask_for(schemas: Schemas, weak: Schemas, tmp_path: Path) -> None:
    sentence = refusal(weak, tmp_path)
    assert sentence.startswith("weak may not make a schema in this database: have its owner say CREATE SCHEMA ")
    schemas.execute(sentence.partition(" say ")[2])
    fired(weak.listed(tmp_path).close())


def test_who_may_not_use_the_schema_is_told_to_name_another(schemas: Schemas, weak: Schemas, tmp_path: Path) -> None:
    fired(schemas.listed(tmp_path).close())
    name = schema_of(tmp_path)
    assert refusal(weak, tmp_path) == f"the schema {name!r} is not weak's to use: name another one, as in ?schema=mine"


def test_who_may_make_no_tables_is_told_to_name_another(schemas: Schemas, weak: Schemas, tmp_path: Path) -> None:
    name = schema_of(tmp_path)
    schemas.execute(f'CREATE SCHEMA "{name}"')
    schemas.execute(f'GRANT USAGE ON SCHEMA "{name}" TO weak')
    assert refusal(weak, tmp_path).startswith(f"weak may make no tables in the schema {name!r}: name another")


def test_a_schema_with_tables_of_something_else_is_left_alone(schemas: Schemas, tmp_path: Path) -> None:
    name = schema_of(tmp_path)
    schemas.execute(f'CREATE SCHEMA "{name}"')
    schemas.execute(f'CREATE TABLE "{name}".queues (their_own text)')
    assert refusal(schemas, tmp_path).startswith(f"the schema {name!r} has tables of something else: name another")

"""The durable storages that whole servers are tried over, and what has to run for each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pytest

from tests.storage.backends import BACKENDS

NAMES: Final = (*BACKENDS, "postgres")

ON_POSTGRES: Final = (pytest.mark.needs("postgresql"), pytest.mark.database)

SERVED: Final = (*BACKENDS, pytest.param("postgres", marks=ON_POSTGRES))
"""Their names, as the parameters of a test or fixture."""


@contextmanager
def new_storage(name: str) -> Iterator[str]:
    """What `--storage` is given for an empty storage of that name, which is there as long as the `with` lasts."""
    if name != "postgres":
        yield f"{name}:queues"
        return
    from kestrel_postgres.testing import PrivateServer  # where there is no PostgreSQL there need be no package for it

    with PrivateServer() as database:
        yield f"postgres:{database.conninfo}"

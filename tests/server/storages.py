"""The durable storages that tests of whole servers use."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pytest

from kestrel.testing.postgres import PrivateServer
from tests.storage.backends import BACKENDS

NAMES: Final = (*BACKENDS, "postgres")

ON_POSTGRES: Final = [pytest.mark.needs("postgresql"), pytest.mark.database]
"""Marks of a test that runs PostgreSQL."""

SERVED: Final = (*BACKENDS, pytest.param("postgres", marks=ON_POSTGRES))
"""The names, as parameters of a test or fixture."""


@contextmanager
def new_storage(name: str) -> Iterator[str]:
    """Yield the value of `--storage` for an empty storage of that name."""
    if name != "postgres":
        yield f"{name}:queues"
        return
    with PrivateServer() as database:
        yield f"postgres:{database.conninfo}"

"""The durable storages that whole servers are tried over, and what has to run for each."""

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
"""Their names, as the parameters of a test or fixture."""


@contextmanager
def new_storage(name: str) -> Iterator[str]:
    """What `--storage` is given for an empty storage of that name, which is there as long as the `with` lasts."""
    if name != "postgres":
        yield f"{name}:queues"
        return
    with PrivateServer() as database:
        yield f"postgres:{database.conninfo}"

"""The durable backends, and what one needs to run a test on each of them.

A test of this folder that asks for the fixture `machine` or `backend` runs once for each. One that is about the files
of the journal is marked `journal_only`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, Protocol

import pytest
from twisted.internet.interfaces import IReactorTime

from kestrel.disk.files import Disk
from kestrel.storage.interfaces import InThread, IStorage
from kestrel.storage.journal.storage import JournalStorage
from kestrel.storage.registry import FACTORIES
from kestrel.storage.scroll.storage import ScrollStorage
from kestrel.storage.total_memory import MemoryLimit


class MakeStorage(Protocol):
    """Makes a storage over a folder, which is not started yet."""

    def __call__(
        self,
        folder: bytes,
        clock: IReactorTime,
        in_thread: InThread,
        *,
        reserve_bytes: int = ...,
        now_ms: Callable[[], int] = ...,
        disk: Disk | None = ...,
        memory: MemoryLimit | None = ...,
    ) -> IStorage: ...


class Backend(NamedTuple):
    """A durable backend.

    With `keeps_order` a restart brings what was open or put back in front of the rest. Without it a restart brings all
    items in the order in which they were put.
    """

    make: MakeStorage
    keeps_order: bool


BACKENDS: Final[Mapping[str, Backend]] = {
    name: Backend(make, "order_kept" in FACTORIES[name].capabilities)
    for name, make in {"journal": JournalStorage, "scroll": ScrollStorage}.items()
}
"""By the name that a described string has for them."""

journal_only = pytest.mark.backends("journal")
"""Marks a test that is about the journal's files, or about what only the journal has."""

scroll_only = pytest.mark.backends("scroll")
"""The same for the scroll."""

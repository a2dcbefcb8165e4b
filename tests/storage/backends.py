"""The durable backends.

A test of this folder that uses the fixture `machine` or `backend` runs once for each. `journal_only` and `scroll_only`
mark tests of one backend.
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
    """A function that returns a storage over a folder, which is not started."""

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

    With `keeps_order`, a restart puts open and aborted items in front of the others. Without it, a restart restores the
    order of the puts.
    """

    make: MakeStorage
    keeps_order: bool


BACKENDS: Final[Mapping[str, Backend]] = {
    name: Backend(make, "order_kept" in FACTORIES[name].capabilities)
    for name, make in {"journal": JournalStorage, "scroll": ScrollStorage}.items()
}
"""The backends by the word that `--storage` uses."""

journal_only = pytest.mark.backends("journal")
"""Marks a test of the journal's files or features."""

scroll_only = pytest.mark.backends("scroll")
"""Marks a test of the scroll's files or features."""

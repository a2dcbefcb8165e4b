"""Where the items of one journaled queue are kept: in the files of a folder, or in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from kestrel.library.journaled_config import JournaledQueueConfig
from kestrel.storage.interfaces import IQueueStorage, IStorage
from kestrel.storage.memory import MemoryQueue, MemoryStorage
from kestrel.storage.scroll.queue import ScrollQueue
from kestrel.storage.scroll.storage import ScrollStorage


class ReaderStores(Protocol):
    """The items of one queue, by its readers."""

    @property
    def storage(self) -> IStorage:
        """What commits them."""

    @property
    def first_id(self) -> int:
        """What a reader that is made now adds to the ids that its contents give."""

    @property
    def journal_bytes(self) -> int:
        """What its files take; 0 where it has none."""

    def store(self, reader: bytes) -> IQueueStorage:
        """What that reader has: what is there, or from now on. Raises `QueueFailed`."""

    def rename(self, reader: bytes, name: bytes) -> None:
        """The contents of a reader are another's from now on. Raises `QueueFailed`, and all is as it was."""

    def delete(self, reader: bytes) -> None:
        """Drop what that reader has. Raises `StorageError`, and all is as it was."""

    def put(self, data: bytes, add_ms: int, expiry_ms: int, readers: Sequence[bytes]) -> None:
        """One item more for all of these, which are all that there are. Raises as `IStorage.put`."""


class FileReaderStores:
    """In the files of a folder (`ReaderStores`): ids are the journal's own."""

    first_id = 0

    def __init__(self, config: JournaledQueueConfig, storage: ScrollStorage) -> None:
        self.storage = storage
        self._config = config
        self._stores: dict[bytes, ScrollQueue] = {}

    @property
    def journal_bytes(self) -> int:
        """What the journal's files take."""
        return next((each.stats["journal_bytes"] for each in self._stores.values()), 0)

    def store(self, reader: bytes) -> ScrollQueue:
        """What the files have for it."""
        settings = self._config.settings_for(reader)
        store = self._stores[reader] = self.storage.queue(self._stored_name(reader), settings)
        return store

    def _stored_name(self, reader: bytes) -> bytes:
        return self._config.name + b"+" + reader if reader else self._config.name

    def rename(self, reader: bytes, name: bytes) -> None:
        """Its file has another name."""
        self.storage.rename(self._stores[reader], self._stored_name(name))
        self._stores[name] = self._stores.pop(reader)

    def delete(self, reader: bytes) -> None:
        """Its file goes; with the last one all files of the queue."""
        self.storage.delete(self._stores[reader])
        del self._stores[reader]

    def put(self, data: bytes, add_ms: int, expiry_ms: int, readers: Sequence[bytes]) -> None:
        """One record."""
        self.storage.put([self._stores[reader] for reader in readers], data, add_ms, expiry_ms)


class MemoryReaderStores:
    """In memory (`ReaderStores`): contents count from 0 on, whenever they are made."""

    journal_bytes = 0

    def __init__(self, config: JournaledQueueConfig) -> None:
        self.storage = MemoryStorage()
        self.first_id = 1
        self._config = config
        self._made = 0
        self._stores: dict[bytes, MemoryQueue] = {}

    def store(self, reader: bytes) -> MemoryQueue:
        """What it has."""
        if reader not in self._stores:
            self._made += 1
            self._stores[reader] = self.storage.queue(b"%d" % self._made, self._config.settings_for(reader))
        return self._stores[reader]

    def rename(self, reader: bytes, name: bytes) -> None:
        """They are another's."""
        self._stores[name] = self._stores.pop(reader)

    def delete(self, reader: bytes) -> None:
        """They are gone."""
        self.storage.delete(self._stores.pop(reader))

    def put(self, data: bytes, add_ms: int, expiry_ms: int, readers: Sequence[bytes]) -> None:
        """They share the bytes."""
        self.storage.put([self._stores[reader] for reader in readers], data, add_ms, expiry_ms)
        self.first_id += 1

"""The stores for the readers of one journaled queue, in files or in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from kestrel.library.journaled_config import JournaledQueueConfig
from kestrel.storage.interfaces import IQueueStorage, IStorage
from kestrel.storage.memory import MemoryQueue, MemoryStorage
from kestrel.storage.scroll.queue import ScrollQueue
from kestrel.storage.scroll.storage import ScrollStorage


class ReaderStores(Protocol):
    """The stores for the readers of one queue."""

    @property
    def storage(self) -> IStorage:
        """The storage that commits the stores."""

    @property
    def first_id(self) -> int:
        """Number that a new reader adds to the item ids of its store."""

    @property
    def journal_bytes(self) -> int:
        """Size of the queue's files in bytes; 0 if it has none."""

    def store(self, reader: bytes) -> IQueueStorage:
        """Return a reader's store, and create it if necessary. Raises `QueueFailed`."""

    def rename(self, reader: bytes, name: bytes) -> None:
        """Rename a reader's store. Raises `QueueFailed` and changes nothing then."""

    def delete(self, reader: bytes) -> None:
        """Delete a reader's store. Raises `StorageError` and changes nothing then."""

    def put(self, data: bytes, add_ms: int, expiry_ms: int, readers: Sequence[bytes]) -> None:
        """Append an item to the stores of `readers`, which must be all readers. Raises the errors of `IStorage.put`."""


class FileReaderStores:
    """A `ReaderStores` in the files of a folder. Item ids are those of the journal."""

    first_id = 0

    def __init__(self, config: JournaledQueueConfig, storage: ScrollStorage) -> None:
        self.storage = storage
        self._config = config
        self._stores: dict[bytes, ScrollQueue] = {}

    @property
    def journal_bytes(self) -> int:
        """Size of the journal files in bytes."""
        return next((each.stats["journal_bytes"] for each in self._stores.values()), 0)

    def store(self, reader: bytes) -> ScrollQueue:
        """Open a reader's store, and create its file if necessary. Raises `QueueFailed`."""
        settings = self._config.settings_for(reader)
        store = self._stores[reader] = self.storage.queue(self._stored_name(reader), settings)
        return store

    def _stored_name(self, reader: bytes) -> bytes:
        return self._config.name + b"+" + reader if reader else self._config.name

    def rename(self, reader: bytes, name: bytes) -> None:
        """Rename a reader's file. Raises `QueueFailed` and changes nothing then."""
        self.storage.rename(self._stores[reader], self._stored_name(name))
        self._stores[name] = self._stores.pop(reader)

    def delete(self, reader: bytes) -> None:
        """Delete a reader's file; with the last reader, delete all files of the queue."""
        self.storage.delete(self._stores[reader])
        del self._stores[reader]

    def put(self, data: bytes, add_ms: int, expiry_ms: int, readers: Sequence[bytes]) -> None:
        """Append an item for all readers as one record."""
        self.storage.put([self._stores[reader] for reader in readers], data, add_ms, expiry_ms)


class MemoryReaderStores:
    """A `ReaderStores` in memory. Each store numbers its items from 0."""

    journal_bytes = 0

    def __init__(self, config: JournaledQueueConfig) -> None:
        self.storage = MemoryStorage()
        self.first_id = 1
        self._config = config
        self._made = 0
        self._stores: dict[bytes, MemoryQueue] = {}

    def store(self, reader: bytes) -> MemoryQueue:
        """Return a reader's store, and create it if necessary."""
        if reader not in self._stores:
            self._made += 1
            self._stores[reader] = self.storage.queue(b"%d" % self._made, self._config.settings_for(reader))
        return self._stores[reader]

    def rename(self, reader: bytes, name: bytes) -> None:
        """Rename a reader's store."""
        self._stores[name] = self._stores.pop(reader)

    def delete(self, reader: bytes) -> None:
        """Delete a reader's store."""
        self.storage.delete(self._stores.pop(reader))

    def put(self, data: bytes, add_ms: int, expiry_ms: int, readers: Sequence[bytes]) -> None:
        """Append an item to the stores of all readers, which share its bytes."""
        self.storage.put([self._stores[reader] for reader in readers], data, add_ms, expiry_ms)
        self.first_id += 1

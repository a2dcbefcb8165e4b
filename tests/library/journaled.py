"""Journaled queues in a program, with a reactor and a disk for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from twisted.internet.defer import Deferred

from kestrel.library import (
    FolderJournaledQueue,
    JournaledQueue,
    JournaledQueueConfig,
    JournaledQueueReaderConfig,
    QueueItem,
    Reader,
    ScrollFolder,
)
from kestrel.testing.faults import FaultyDisk
from tests.programs import START_MS, OpenedFolders

WORK = b"work"


def config(
    name: bytes = WORK, reader: JournaledQueueReaderConfig | None = None, **options: Any
) -> JournaledQueueConfig:
    """Return the config of a queue whose readers all have the given config."""
    return JournaledQueueConfig(name=name, default_reader_config=reader or JournaledQueueReaderConfig(), **options)


class Program(OpenedFolders):
    """A program with journaled queues in the folder `queues`."""

    def __init__(self, tmp_path: Path, disk: FaultyDisk | None = None) -> None:
        super().__init__(tmp_path, disk)
        self.folder_path = tmp_path / "queues"

    def queue(self, settings: JournaledQueueConfig | None = None, reserve_bytes: int = 1) -> JournaledQueue:
        """Return a queue, set up, with a folder of its own."""
        options = {**self.options, "reserve_bytes": reserve_bytes}
        queue = JournaledQueue(settings or config(), self.folder_path, self.reactor, **options)
        self._opened.append(queue)
        self.reactor.result(queue.setup())
        return queue

    def in_memory(self) -> JournaledQueue:
        """Return a queue without a folder."""
        queue = JournaledQueue(config(), None, self.reactor, now_ms=self.reactor.now_ms)
        self._opened.append(queue)
        self.reactor.result(queue.setup())
        return queue

    def reader(self, **options: Any) -> tuple[JournaledQueue, Reader]:
        """Return a queue, and its default reader with these options."""
        queue = self.queue(config(reader=JournaledQueueReaderConfig(**options)))
        return queue, queue.reader()

    def folder(self, **options: Any) -> ScrollFolder:
        """Return the folder, open."""
        folder = ScrollFolder(self.folder_path, self.reactor, **self.options, **options)
        self._opened.append(folder)
        self.reactor.result(folder.open())
        return folder

    def restart(self, queue: JournaledQueue, settings: JournaledQueueConfig | None = None) -> JournaledQueue:
        """Close a queue, and open it again."""
        self.reactor.result(queue.close())
        return self.queue(settings or queue.config)

    def put(self, queue: FolderJournaledQueue, *items: bytes) -> None:
        """Put items, and wait until they are safe."""
        for data in items:
            safe = queue.put(data)
            assert safe is not None
            self.reactor.result(safe)

    def put_expiring(self, queue: FolderJournaledQueue, count: int) -> None:
        """Put items that expire after a second, without waiting until they are safe."""
        for number in range(count):
            queue.put(b"%d" % number, START_MS + 1000)

    def get(self, reader: Reader) -> QueueItem:
        """Return the head of a reader as an open read."""
        item = self.result(reader.get(0))
        assert isinstance(item, QueueItem)
        return item

    def result(self, deferred: Deferred[Any]) -> Any:
        """Settle, and return the result of a Deferred."""
        return self.reactor.result(deferred)

    def drain(self, reader: Reader) -> list[bytes]:
        """Get and commit all items of a reader."""
        found = []
        while (item := self.result(reader.get(0))) is not None:
            found.append(item.data)
            assert reader.commit(item.id)
        return found

    @property
    def files(self) -> list[str]:
        """The names of the files in the folder, without the numbers of the segments."""
        if not self.folder_path.exists():
            return []
        names = [path.name for path in self.folder_path.iterdir() if path.is_file()]
        return sorted(".".join(each for each in name.split(".") if not each.isdigit()) for name in names)


__all__ = ["START_MS", "WORK", "Program", "config"]

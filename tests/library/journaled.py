"""Journaled queues in a program whose reactor and disk are the test's."""

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
    """The config of a queue whose readers all go by that."""
    return JournaledQueueConfig(name=name, default_reader_config=reader or JournaledQueueReaderConfig(), **options)


class Program(OpenedFolders):
    """A program with journaled queues in the folder `queues`."""

    def __init__(self, tmp_path: Path, disk: FaultyDisk | None = None) -> None:
        super().__init__(tmp_path, disk)
        self.folder_path = tmp_path / "queues"

    def queue(self, settings: JournaledQueueConfig | None = None, reserve_bytes: int = 1) -> JournaledQueue:
        """A queue with the folder to itself, set up."""
        options = {**self.options, "reserve_bytes": reserve_bytes}
        queue = JournaledQueue(settings or config(), self.folder_path, self.reactor, **options)
        self._opened.append(queue)
        self.reactor.result(queue.setup())
        return queue

    def in_memory(self) -> JournaledQueue:
        """A queue without any folder."""
        queue = JournaledQueue(config(), None, self.reactor, now_ms=self.reactor.now_ms)
        self._opened.append(queue)
        self.reactor.result(queue.setup())
        return queue

    def reader(self, **options: Any) -> tuple[JournaledQueue, Reader]:
        """A queue whose default reader goes by these options, and that reader."""
        queue = self.queue(config(reader=JournaledQueueReaderConfig(**options)))
        return queue, queue.reader()

    def folder(self, **options: Any) -> ScrollFolder:
        """The folder, open."""
        folder = ScrollFolder(self.folder_path, self.reactor, **self.options, **options)
        self._opened.append(folder)
        self.reactor.result(folder.open())
        return folder

    def restart(self, queue: JournaledQueue, settings: JournaledQueueConfig | None = None) -> JournaledQueue:
        """Stop in order, and begin again over the same folder."""
        self.reactor.result(queue.close())
        return self.queue(settings or queue.config)

    def put(self, queue: FolderJournaledQueue, *items: bytes) -> None:
        """Put them; they are safe."""
        for data in items:
            safe = queue.put(data)
            assert safe is not None
            self.reactor.result(safe)

    def get(self, reader: Reader) -> QueueItem:
        """The item that is at hand, as an open read."""
        item = self.result(reader.get(0))
        assert isinstance(item, QueueItem)
        return item

    def result(self, deferred: Deferred[Any]) -> Any:
        """What it fires with when all is settled."""
        return self.reactor.result(deferred)

    def drain(self, reader: Reader) -> list[bytes]:
        """All that it gives, one after the other, each committed."""
        found = []
        while (item := self.result(reader.get(0))) is not None:
            found.append(item.data)
            assert reader.commit(item.id)
        return found

    @property
    def files(self) -> list[str]:
        """The names of the files in the folder, those of the items without their numbers; none without a folder."""
        if not self.folder_path.exists():
            return []
        names = [path.name for path in self.folder_path.iterdir() if path.is_file()]
        return sorted(".".join(each for each in name.split(".") if not each.isdigit()) for name in names)


__all__ = ["START_MS", "WORK", "Program", "config"]

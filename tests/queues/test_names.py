"""Illegal names at the manager: no queue is created, and the storage is not called."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kestrel.config.model import QueueSettings
from kestrel.errors import BadQueueName
from kestrel.queues.manager import QueueManager
from kestrel.storage.memory import MemoryQueue, MemoryStorage
from kestrel.testing.server import MemoryServer

ILLEGAL = [
    b"",
    b"+",
    b".",
    b"..",
    b"a.b",
    b"a/b",
    b"/",
    b"a~",
    b"~~1",
    b"a b",
    b"a\tb",
    b"a\x0b",
    b"a\r",
    b"a\n",
    b"\x00",
    b"a\x1f",
    b"a\x7f",
    b"x" * 201,
]

LEGAL = [b"a", b"A", b"+x", b"x+", b"a+b", b"a+b+c", b"++", b"a:b,c;d", b"\xff\x80", "größe".encode(), b"x" * 200, b"-"]


class RecordingStorage(MemoryStorage):
    """A storage that records the names that it is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked_for: list[bytes] = []

    def queue(self, name: bytes, settings: QueueSettings) -> MemoryQueue:
        self.asked_for.append(name)
        return super().queue(name, settings)


@pytest.fixture
def storage() -> RecordingStorage:
    return RecordingStorage()


@pytest.fixture
def manager(storage: RecordingStorage) -> QueueManager:
    return MemoryServer(storage).manager


@pytest.mark.parametrize("name", LEGAL)
def test_legal_name_creates_a_queue(manager: QueueManager, storage: RecordingStorage, name: bytes) -> None:
    assert manager.queue(name).name == name
    assert storage.asked_for == [name]


CREATING: list[Callable[[QueueManager, bytes], object]] = [
    lambda manager, name: manager.queue(name),
    lambda manager, name: manager.put(name, b"data", 0),
]


@pytest.mark.parametrize("create", CREATING, ids=["queue", "put"])
@pytest.mark.parametrize("name", ILLEGAL)
def test_illegal_name_is_refused_before_storage_is_called(
    manager: QueueManager, storage: RecordingStorage, name: bytes, create: Callable[[QueueManager, bytes], object]
) -> None:
    with pytest.raises(BadQueueName) as refused:
        create(manager, name)
    assert str(refused.value).strip()
    assert storage.asked_for == []
    assert manager.all_queues() == []
    assert manager.counters.queue_creates == 0


@pytest.mark.parametrize("name", [name for name in ILLEGAL if name and not set(name) & set(b"/ \r\n")])
def test_client_gets_error_only_where_illegal_name_would_create_queue(name: bytes) -> None:
    client = MemoryServer().connect()
    for request in (
        b"set %b 0 0 1\r\nx\r\n",
        b"get %b\r\n",
        b"get %b/peek\r\n",
        b"get %b/open\r\n",
        b"monitor %b 1\r\n",
    ):
        assert client.ask(request % name).startswith(b"CLIENT_ERROR ")
    requests = b"delete %b\r\nflush %b\r\nconfirm %b 1\r\nget %b/close\r\nget %b/abort\r\nflush_expired %b\r\n"
    assert client.ask(requests.replace(b"%b", name)) == b"DELETED\r\nEND\r\nERROR\r\nEND\r\nEND\r\n0\r\n"
    assert client.ask(b"dump_stats\r\n") == b"END\r\n"
    assert not client.is_closed

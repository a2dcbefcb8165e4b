"""Queue names on file systems that take some names for one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kestrel.config.load import loads
from kestrel.disk.files import Disk
from kestrel.disk.name_folding import check_distinct_when_folded, fold_name
from kestrel.errors import BadQueueName
from kestrel.storage.interfaces import IStorage
from kestrel.storage.journal.storage import JournalStorage
from kestrel.storage.scroll.storage import ScrollStorage
from kestrel.testing.server import MemoryServer

STORED = b"STORED\r\n"

backends = pytest.mark.parametrize("make_storage", [JournalStorage, ScrollStorage])


class FoldingDisk(Disk):
    """The real one, which is said not to tell names apart."""

    def folds_names(self, folder: bytes, entry: bytes) -> bool:
        return True


def set_(queue: bytes) -> bytes:
    return b"set %b 0 0 1\r\nx\r\n" % queue


def server_over(folder: Path, make_storage: Callable[..., IStorage], disk: Disk) -> MemoryServer:
    return MemoryServer(folder=folder, make_storage=make_storage, disk=disk)


@backends
@pytest.mark.parametrize("other", ["Work", "WORK", "work+A"])
def test_a_name_that_the_file_system_takes_for_another_is_refused(
    tmp_path: Path, make_storage: Callable[..., IStorage], other: str
) -> None:
    server = server_over(tmp_path / "queues", make_storage, FoldingDisk())
    client = server.connect()
    assert client.ask(set_(b"work") + set_(b"work+a")) == STORED * 2
    reply = client.ask(set_(other.encode()))
    assert reply.startswith(b"CLIENT_ERROR the file system of the queues does not tell this name from ")
    assert client.ask(set_(b"work") + set_(b"works")) == STORED * 2
    server.restart()
    assert server.connect().ask(set_(other.encode())).startswith(b"CLIENT_ERROR")
    assert server.manager.queue(b"work").store.items == 2
    assert server.manager.queue(b"work+a").store.items == 2


@backends
def test_the_name_is_free_when_the_other_is_deleted(tmp_path: Path, make_storage: Callable[..., IStorage]) -> None:
    server = server_over(tmp_path / "queues", make_storage, FoldingDisk())
    assert server.connect().ask(set_(b"work") + b"delete work\r\n") == STORED + b"DELETED\r\n"
    assert server.connect().ask(set_(b"Work")) == STORED


def test_a_journal_that_is_left_alone_keeps_its_name(tmp_path: Path) -> None:
    server = server_over(tmp_path / "queues", JournalStorage, FoldingDisk())
    assert server.connect().ask(set_(b"work")) == STORED
    server.restart(loads('[[queues]]\nname = "work"\nkeepJournal = false'))
    assert server.connect().ask(set_(b"Work")).startswith(b"CLIENT_ERROR")


@backends
def test_where_names_are_told_apart_they_are_different_queues(
    tmp_path: Path, make_storage: Callable[..., IStorage]
) -> None:
    server = server_over(tmp_path / "queues", make_storage, Disk())
    assert server.connect().ask(set_(b"work") + set_(b"Work") + b"get work\r\n").startswith(STORED * 2 + b"VALUE")
    assert server.manager.queue(b"Work").store.items == 1


def test_whether_a_folder_tells_names_apart_is_tried(tmp_path: Path) -> None:
    folder = bytes(tmp_path)
    (tmp_path / ".kestrel").mkdir()
    assert not Disk().folds_names(folder, b".kestrel")
    (tmp_path / ".KESTREL").mkdir()
    assert not Disk().folds_names(folder, b".kestrel")
    (tmp_path / ".KESTREL").rmdir()
    (tmp_path / ".KESTREL").symlink_to(tmp_path / ".kestrel")
    assert Disk().folds_names(folder, b".kestrel")


@pytest.mark.parametrize(
    ("name", "other"),
    [("work", "WORK"), ("caf\u00e9", "cafe\u0301"), ("CAF\u00c9", "cafe\u0301"), ("stra\u00dfe", "STRASSE")],
)
def test_names_that_some_file_system_takes_for_one(name: str, other: str) -> None:
    with pytest.raises(BadQueueName):
        check_distinct_when_folded(name.encode(), [b"another", other.encode()])


@given(st.binary())
def test_any_bytes_can_be_compared(name: bytes) -> None:
    assert fold_name(name) == fold_name(name)
    check_distinct_when_folded(name, [name])

"""Queue names on file systems that take some names for one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kestrel.config.load import loads
from kestrel.disk.files import Disk, check_distinct_when_folded, fold_name
from kestrel.errors import BadQueueName
from kestrel.testing.server import MemoryServer
from tests.storage.backends import Backend, journal_only

STORED = b"STORED\r\n"
REFUSED = b"CLIENT_ERROR the file system of the queues does not tell this name from "


class FoldingDisk(Disk):
    """The real disk, which claims to fold names."""

    def folds_names(self, folder: bytes, entry: bytes) -> bool:
        return True


Start = Callable[[Disk], MemoryServer]


@pytest.fixture
def start(tmp_path: Path, backend: Backend) -> Start:
    """A function that starts a server on a disk."""
    return lambda disk: MemoryServer(folder=tmp_path / "queues", make_storage=backend.make, disk=disk)


def ask(server: MemoryServer, *queues: bytes, then: bytes = b"") -> bytes:
    """Put an item to each queue, send another request, and return the replies."""
    return server.connect().ask(b"".join(b"set %b 0 0 1\r\nx\r\n" % queue for queue in queues) + then)


@pytest.mark.parametrize("other", [b"Work", b"WORK", b"work+A"])
def test_name_of_an_existing_file_is_refused(start: Start, other: bytes) -> None:
    server = start(FoldingDisk())
    assert ask(server, b"work", b"work+a") == STORED * 2
    assert ask(server, other).startswith(REFUSED)
    assert ask(server, b"work", b"works") == STORED * 2
    server.restart()
    assert ask(server, other).startswith(REFUSED)
    assert server.manager.queue(b"work").store.items == 2
    assert server.manager.queue(b"work+a").store.items == 2


def test_deletion_frees_the_name(start: Start) -> None:
    server = start(FoldingDisk())
    assert ask(server, b"work", then=b"delete work\r\n") == STORED + b"DELETED\r\n"
    assert ask(server, b"Work") == STORED


@journal_only
def test_unused_journal_keeps_its_name(start: Start) -> None:
    server = start(FoldingDisk())
    assert ask(server, b"work") == STORED
    server.restart(loads('[[queues]]\nname = "work"\nkeepJournal = false'))
    assert ask(server, b"Work").startswith(REFUSED)


def test_other_file_systems_keep_names_apart(start: Start) -> None:
    server = start(Disk())
    assert ask(server, b"work", b"Work", then=b"get work\r\n").startswith(STORED * 2 + b"VALUE")
    assert server.manager.queue(b"Work").store.items == 1


def test_disk_detects_whether_names_are_folded(tmp_path: Path) -> None:
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
def test_names_that_fold_to_the_same_are_refused(name: str, other: str) -> None:
    with pytest.raises(BadQueueName):
        check_distinct_when_folded(name.encode(), [b"another", other.encode()])


@given(st.binary())
def test_any_bytes_can_be_folded(name: bytes) -> None:
    assert fold_name(name) == fold_name(name)
    check_distinct_when_folded(name, [name])

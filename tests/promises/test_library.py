"""Kestrel as a library: queues embedded in a program are as durable as those of a server."""

from __future__ import annotations

from pathlib import Path

import pytest

from kestrel.config.model import QueueSettings
from kestrel.errors import FolderInUse, StorageError
from kestrel.library import PersistentQueue
from kestrel.testing.faults import FaultyDisk
from kestrel.testing.server import MemoryServer
from tests.library.test_examples import run
from tests.programs import ProgramReactor, arrivals

OUTPUT = """\
0 orders are left from the last run
3 new orders are safe
pack order 1
pack order 2
pack order 3
ship order 1
ship order 2
ship order 3
all orders are done
"""


def test_example_runs_to_its_end() -> None:
    assert run("library.py") == OUTPUT


def test_example_runs_again_over_the_same_folder(tmp_path: Path) -> None:
    folder = tmp_path / "queues"
    assert run("library.py", str(folder), "0.001") == OUTPUT
    reactor = ProgramReactor()
    queue = PersistentQueue(b"orders", folder, reactor, reserve_bytes=1)
    reactor.result(queue.setup())
    queue.add(b"ship order 0")
    assert queue.remove(opened=True) is not None
    reactor.result(queue.close())
    rest = OUTPUT.partition("\n")[2]
    output = "1 orders are left from the last run\n" + rest.replace("pack order 1\n", "ship order 0\npack order 1\n")
    assert run("library.py", str(folder)) == output


@pytest.mark.parametrize(("sync_journal_ms", "syncs"), [(None, 0), (500, 0), (0, 1)])
def test_put_is_reported_when_as_safe_as_settings_require(
    tmp_path: Path, sync_journal_ms: int | None, syncs: int
) -> None:
    reactor, disk = ProgramReactor(), FaultyDisk()
    settings = QueueSettings(sync_journal_ms=sync_journal_ms)
    queue = PersistentQueue(b"work", tmp_path, reactor, settings=settings, reserve_bytes=1, disk=disk)
    reactor.result(queue.setup())
    disk.calls.clear()
    assert queue.add(b"hello")
    safe = arrivals(queue.safe())
    assert (safe, disk.calls) == ([], [])
    reactor.end_turn()
    assert "write" in disk.calls
    assert len(safe) == (0 if syncs else 1)
    reactor.settle()
    assert (safe, disk.calls.count("sync")) == ([None], syncs)
    reactor.result(queue.close())


def test_items_survive_restart_of_the_program(tmp_path: Path) -> None:
    reactor = ProgramReactor()
    queue = PersistentQueue(b"work", tmp_path, reactor, reserve_bytes=1)
    reactor.result(queue.setup())
    for data in (b"taken", b"finished", b"open", b"kept"):
        queue.add(data)
    assert queue.remove() is not None
    finished, held = queue.remove(opened=True), queue.remove(opened=True)
    assert finished is not None and held is not None
    assert queue.confirm_remove(finished.xid)
    reactor.result(queue.close())

    again = PersistentQueue(b"work", tmp_path, reactor, reserve_bytes=1)
    reactor.result(again.setup())
    assert [item.data for item in iter(again.remove, None)] == [b"open", b"kept"]
    reactor.result(again.close())


def test_folder_in_use_is_refused(tmp_path: Path) -> None:
    reactor = ProgramReactor()
    server = MemoryServer(folder=tmp_path)
    queue = PersistentQueue(b"work", tmp_path, reactor, reserve_bytes=1)
    with pytest.raises(FolderInUse):
        reactor.result(queue.setup())
    with pytest.raises(StorageError):
        queue.add(b"hello")
    server.stop()
    server.settle()
    reactor.result(queue.setup())
    with pytest.raises(FolderInUse):
        reactor.result(PersistentQueue(b"other", tmp_path, reactor, reserve_bytes=1).setup())
    assert queue.add(b"hello")
    reactor.result(queue.close())


def test_server_reads_folder_of_a_library_program(tmp_path: Path) -> None:
    reactor = ProgramReactor()
    queue = PersistentQueue(b"work", tmp_path, reactor, reserve_bytes=1)
    reactor.result(queue.setup())
    queue.add(b"first")
    step = queue.remove(opened=True)
    assert step is not None and queue.continue_(step.xid, b"second")
    reactor.result(queue.close())
    server = MemoryServer(folder=tmp_path)
    client = server.connect()
    assert client.ask(b"get work\r\n") == b"VALUE work 0 6\r\nsecond\r\nEND\r\n"
    assert client.ask(b"get work\r\n") == b"END\r\n"
    server.stop()
    server.settle()

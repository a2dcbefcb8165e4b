"""A medium without free inodes, or without free bytes and inodes: the requests that still succeed."""

from __future__ import annotations

from pathlib import Path

import pytest

from kestrel.config.model import QueueSettings
from kestrel.testing.faults import FaultyDisk
from tests.memcache_text import END, STORED, set_, value
from tests.storage.backends import Backend, journal_only, scroll_only
from tests.storage.faulty_server import DELETED, Arrange, Client, Machine, Server, drain

ITEMS = [b"%d" % number * 40 for number in range(10)]
ROTATING = QueueSettings(default_journal_size_bytes=200, max_memory_size_bytes=150)
ABORTED = END


@pytest.fixture
def machine(tmp_path: Path, backend: Backend) -> Machine:
    """A machine whose queue "rotating" has many small files."""
    return Machine(tmp_path, QueueSettings(), {b"rotating": ROTATING}, backend.make)


@pytest.fixture
def filled(machine: Machine) -> Server:
    """A server with several filled queues."""
    server = machine.start()
    client = server.client()
    for data in ITEMS:
        for queue in (b"work", b"rotating", b"parent", b"parent+child"):
            assert client.talk(set_(queue, data)) == STORED
    return server


@pytest.fixture
def client(filled: Server) -> Client:
    """A client of a server that was started over filled queues without a free inode."""
    return start_without_reserve(filled).client()


def use_up_inodes(disk: FaultyDisk) -> None:
    disk.inodes = 0


def use_up_bytes_and_inodes(disk: FaultyDisk) -> None:
    disk.room = disk.inodes = 0


def start_without_reserve(server: Server, arrange: Arrange = use_up_inodes) -> Server:
    """Kill the server, and start another one on a full medium without the reserve."""
    (server.folder / ".kestrel/reserve").unlink(missing_ok=True)
    return server.crashed(arrange)


def free_inodes(server: Server, wait_s: float = 1) -> None:
    """Free inodes, and wait until the server has noticed."""
    server.disk.inodes = None
    server.pass_time(wait_s)
    server.settle()


def count_rotating_files(server: Server) -> int:
    return sum(name.startswith("rotating") for name in server.files())


def test_items_are_read_after_a_start_without_inodes(filled: Server) -> None:
    filled.client().talk(b"get work/open\r\n")
    again = start_without_reserve(filled)
    client = again.client()
    for queue in (b"work", b"rotating", b"parent"):
        assert client.talk(b"get %b/peek\r\n" % queue) == value(queue + b"/peek", ITEMS[0])
        assert client.talk(b"get %b/open\r\n" % queue) == value(queue + b"/open", ITEMS[0])
        assert client.talk(b"get %b/abort\r\n" % queue) == ABORTED
        assert client.talk(b"get %b/open\r\n" % queue) == value(queue + b"/open", ITEMS[0])
        assert client.talk(b"get %b/close\r\n" % queue) == END
        assert drain(again, queue) == ITEMS[1:]
    assert drain(again, b"parent+child") == [ITEMS[0], *sorted(ITEMS[1:] * 2)]  # its first put created the child


def test_get_from_unknown_queue_without_inodes_answers_end(client: Client) -> None:
    for queue in (b"unknown", b"unknown+child", b"another"):
        assert client.talk(b"get %b\r\n" % queue) == END
        assert client.talk(b"get %b/peek\r\n" % queue) == END
        assert client.talk(b"delete %b\r\n" % queue) == DELETED


@pytest.mark.parametrize("arrange", [use_up_inodes, use_up_bytes_and_inodes])
def test_queue_is_deleted_on_a_full_medium(filled: Server, arrange: Arrange) -> None:
    again = start_without_reserve(filled, arrange)
    client = again.client()
    for queue in (b"rotating", b"work", b"parent+child", b"parent"):
        assert client.talk(b"delete %b\r\n" % queue) == DELETED
    assert not again.files()
    last = again.crashed()
    assert [drain(last, queue) for queue in (b"rotating", b"work", b"parent", b"parent+child")] == [[]] * 4


def test_put_is_refused_until_inodes_are_free(client: Client) -> None:
    assert client.talk(set_(b"new", b"refused")).startswith(b"SERVER_ERROR ")
    free_inodes(client.server)
    assert client.talk(set_(b"new", b"a")) == STORED
    assert client.talk(set_(b"work", b"b")) == STORED
    assert drain(client.server.crashed(), b"new") == [b"a"]


def test_queue_first_used_without_inodes_keeps_later_puts(client: Client) -> None:
    assert client.talk(b"get new\r\n") == END
    free_inodes(client.server)
    assert client.talk(set_(b"new", b"a") + set_(b"new", b"b")) == STORED * 2
    assert client.talk(b"get new\r\n") == value(b"new", b"a")
    assert drain(client.server.crashed(), b"new") == [b"b"]


@journal_only
def test_files_of_an_emptied_queue_are_erased_without_inodes(client: Client) -> None:
    server = client.server
    assert count_rotating_files(server) > 2
    assert drain(server, b"rotating") == ITEMS
    server.pass_time(10)
    server.settle()
    assert count_rotating_files(server) <= 1


@journal_only
def test_journal_grows_while_it_cannot_be_rotated(machine: Machine) -> None:
    server = machine.start()
    server.client().talk(b"get rotating\r\n")
    server.disk.inodes = 0
    for data in ITEMS:
        assert server.client().talk(set_(b"rotating", data)) == STORED
    assert list(server.files()) == ["rotating"]
    free_inodes(server, wait_s=10)
    assert len(server.files()) > 1
    assert drain(server.crashed(), b"rotating") == ITEMS


@journal_only
def test_reserve_is_used_to_repair_a_torn_journal(filled: Server) -> None:
    with (filled.folder / "work").open("ab") as file:
        file.write(b"\x00")
    again = filled.crashed(use_up_inodes)
    (again.folder / ".kestrel/damaged").mkdir()
    assert drain(again, b"work") == ITEMS


@scroll_only
def test_torn_writer_file_is_served_and_kept(filled: Server) -> None:
    torn = next(filled.folder.glob("work.1*"))
    data = torn.read_bytes()
    torn.write_bytes(data[:-1])
    (filled.folder / ".kestrel/damaged").mkdir()
    again = start_without_reserve(filled)
    assert drain(again, b"work") == ITEMS[:-1]
    again.settle()
    kept = next(path for path in again.folder.rglob(torn.name + "*") if path.is_file())
    assert kept.read_bytes() == data[:-1]
    free_inodes(again)
    assert again.client().talk(set_(b"work", b"new")) == STORED
    assert drain(again.crashed(), b"work") == [b"new"]

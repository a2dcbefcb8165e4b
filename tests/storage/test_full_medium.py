"""A medium without free inodes, or without bytes and inodes: what clients can still do."""

from __future__ import annotations

from pathlib import Path

import pytest

from kestrel.config.model import QueueSettings
from kestrel.testing.faults import FaultyDisk
from tests.storage.backends import Backend, journal_only, scroll_only
from tests.storage.serving import END, STORED, Client, Machine, Server, drain, put, value

ITEMS = [b"%d" % number * 40 for number in range(10)]
ROTATING = QueueSettings(default_journal_size_bytes=200, max_memory_size_bytes=150)
ABORTED = END
DELETED = b"DELETED\r\n"


@pytest.fixture
def machine(tmp_path: Path, backend: Backend) -> Machine:
    """Where servers run; the queue "rotating" has many small files."""
    return Machine(tmp_path, QueueSettings(), {b"rotating": ROTATING}, backend.make)


def fill_queues(server: Server) -> None:
    client = server.client()
    for data in ITEMS:
        for queue in (b"work", b"rotating", b"parent", b"parent+child"):
            assert client.talk(put(queue, data)) == STORED


def no_inodes(disk: FaultyDisk) -> None:
    disk.inodes = 0


def nothing(disk: FaultyDisk) -> None:
    disk.room = disk.inodes = 0


def start_without_reserve(machine: Machine, server: Server, full: object = no_inodes) -> Server:
    """Kill the server and start another one on a medium that has become full, with the reserve given up."""
    (server.folder / ".kestrel/reserve").unlink(missing_ok=True)
    assert callable(full)
    return machine.start_with_faults(server.folder, full)


@pytest.fixture
def client(machine: Machine) -> Client:
    """A client of a server that was started over full queues, without a free inode."""
    server = machine.start()
    fill_queues(server)
    return start_without_reserve(machine, server).client()


def test_items_are_read_after_a_start_without_inodes(machine: Machine) -> None:
    server = machine.start()
    fill_queues(server)
    server.client().talk(b"get work/open\r\n")
    again = start_without_reserve(machine, server)
    client = again.client()
    for queue in (b"work", b"rotating", b"parent"):
        first = value(queue, ITEMS[0])
        assert client.talk(b"get %b/peek\r\n" % queue) == first
        assert client.talk(b"get %b/open\r\n" % queue) == first
        assert client.talk(b"get %b/abort\r\n" % queue) == ABORTED
        assert client.talk(b"get %b/open\r\n" % queue) == first
        assert client.talk(b"get %b/close\r\n" % queue) == END
        assert drain(again, queue) == ITEMS[1:]
    assert drain(again, b"parent+child") == [ITEMS[0], *sorted(ITEMS[1:] * 2)]  # its first put created the child


def test_a_get_from_an_unknown_queue_without_inodes_answers_end(client: Client) -> None:
    for queue in (b"unknown", b"unknown+child", b"another"):
        assert client.talk(b"get %b\r\n" % queue) == END
        assert client.talk(b"get %b/peek\r\n" % queue) == END
        assert client.talk(b"delete %b\r\n" % queue) == DELETED


@pytest.mark.parametrize("full", [no_inodes, nothing])
def test_a_queue_is_deleted_on_a_full_medium(machine: Machine, full: object) -> None:
    server = machine.start()
    fill_queues(server)
    again = start_without_reserve(machine, server, full)
    client = again.client()
    for queue in (b"rotating", b"work", b"parent+child", b"parent"):
        assert client.talk(b"delete %b\r\n" % queue) == DELETED
    assert not again.files()
    last = machine.crash(again)
    assert [drain(last, queue) for queue in (b"rotating", b"work", b"parent", b"parent+child")] == [[]] * 4


def test_a_put_without_inodes_is_refused_until_there_are_some(machine: Machine, client: Client) -> None:
    server = client._server
    assert client.talk(put(b"new", b"refused")).startswith(b"SERVER_ERROR ")
    server.disk.inodes = None
    server.pass_time(1)
    server.settle()
    assert client.talk(put(b"new", b"a")) == STORED
    assert client.talk(put(b"work", b"b")) == STORED
    assert drain(machine.crash(server), b"new") == [b"a"]


def test_a_put_to_a_queue_that_was_asked_for_without_inodes_is_kept(machine: Machine, client: Client) -> None:
    server = client._server
    assert client.talk(b"get new\r\n") == END
    server.disk.inodes = None
    server.pass_time(1)
    server.settle()
    assert client.talk(put(b"new", b"a") + put(b"new", b"b")) == STORED * 2
    assert client.talk(b"get new\r\n") == value(b"new", b"a")
    assert drain(machine.crash(server), b"new") == [b"b"]


@journal_only
def test_the_files_of_an_emptied_queue_are_erased_without_inodes(client: Client) -> None:
    server = client._server
    before = sum(name.startswith("rotating") for name in server.files())
    assert before > 2
    assert drain(server, b"rotating") == ITEMS
    server.pass_time(10)
    server.settle()
    assert sum(name.startswith("rotating") for name in server.files()) <= 1


@journal_only
def test_a_journal_that_cannot_be_rotated_is_written_to(machine: Machine) -> None:
    server = machine.start()
    server.client().talk(b"get rotating\r\n")
    server.disk.inodes = 0
    for data in ITEMS:
        assert server.client().talk(put(b"rotating", data)) == STORED
    assert list(server.files()) == ["rotating"]
    server.disk.inodes = None
    server.pass_time(10)
    server.settle()
    assert len(server.files()) > 1
    assert drain(machine.crash(server), b"rotating") == ITEMS


@journal_only
def test_a_journal_that_is_cut_short_is_repaired_with_the_reserve(machine: Machine) -> None:
    server = machine.start()
    fill_queues(server)
    with (server.folder / "work").open("ab") as file:
        file.write(b"\x00")
    again = machine.start_with_faults(server.folder, no_inodes)
    (again.folder / ".kestrel/damaged").mkdir()
    assert drain(again, b"work") == ITEMS


@scroll_only
def test_a_writer_file_that_is_cut_short_is_served_and_kept(machine: Machine) -> None:
    server = machine.start()
    fill_queues(server)
    torn = next(server.folder.glob("work.1*"))
    data = torn.read_bytes()
    torn.write_bytes(data[:-1])
    (server.folder / ".kestrel/damaged").mkdir()
    again = start_without_reserve(machine, server)
    assert drain(again, b"work") == ITEMS[:-1]
    again.settle()
    kept = next(path for path in again.folder.rglob(torn.name + "*") if path.is_file())
    assert kept.read_bytes() == data[:-1]
    again.disk.inodes = None
    again.pass_time(1)
    again.settle()
    assert again.client().talk(put(b"work", b"new")) == STORED
    assert drain(machine.crash(again), b"work") == [b"new"]
